# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures leaf-spine fabrics of network namespaces, healthy and with a fault, over many seeds, and
prints a table of verdicts. Needs root.

.venv/bin/python tests/benchmark/naming_fabrics.py --seeds 10 [case ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sandbox"))
from cluster import obstacle  # noqa: E402
from fabric_cases import CASES, measure_case  # noqa: E402

WORDS = ("named", "undecided", "missed", "wrong")


def save(directory: Path, name: str, seed: int, outcome) -> None:
    """Write the plans, figures and findings of a run as JSON."""
    document = {
        "case": name,
        "seed": seed,
        "word": outcome.word,
        "why": outcome.why,
        "lines": outcome.lines,
        "truth": str(outcome.truth),
        "mesh": outcome.judged.document,
        "findings": [finding.to_dict() for _check, finding in outcome.judged.findings],
        "passes": outcome.passes,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}-{seed}.json").write_text(json.dumps(document, indent=1, default=str))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", choices=[[], *CASES], metavar="case", help=", ".join(CASES)
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--duration", type=float, default=2.0, help="seconds of traffic in a round")
    parser.add_argument("--save", type=Path, help="directory for a document of each run")
    given = parser.parse_args()
    if obstacle():
        print(f"naming_fabrics.py: {obstacle()}", file=sys.stderr)
        return 2
    counts = {}
    print(f"| fabric | runs | {' | '.join(WORDS)} | s a run |", flush=True)
    print("| --- |" + " --- |" * (len(WORDS) + 2), flush=True)
    for name in given.cases or CASES:
        counts[name] = Counter()
        began = time.monotonic()
        for seed in range(given.first, given.first + given.seeds):
            outcome = measure_case(CASES[name], seed, duration=given.duration)
            counts[name][outcome.word] += 1
            if given.save:
                save(given.save, name, seed, outcome)
            if outcome.word != "named":
                print(f"  {name} seed {seed}: {outcome.word}: {outcome.why}", file=sys.stderr)
                for line in outcome.lines:
                    print(f"    {line}", file=sys.stderr, flush=True)
        figures = " | ".join(str(counts[name][word]) for word in WORDS)
        seconds = (time.monotonic() - began) / given.seeds
        print(f"| {name} | {given.seeds} | {figures} | {seconds:.0f} |", flush=True)
    return int(any(count["wrong"] or count["missed"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
