# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The sample workloads: the figures that each kind prints, and how they are compared."""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple

#: How the figures of pods make the figure of the workload.
SUM, MEAN = "sum", "mean"


class Figure(NamedTuple):
    """A figure. ``key``: its name in the JSON lines of a pod's log; ``name``: in results."""

    key: str
    name: str
    #: Name and unit in messages.
    title: str
    combined: str
    #: 1: higher is better, -1: lower is better, 0: not compared with the run before.
    better: int = 0


class WorkloadKind(NamedTuple):
    """A kind of workload. Training prints a line for each report, of which the figures are the
    last loss and the median of the rate; a benchmark prints one line.
    """

    figures: Tuple[Figure, ...]
    training: bool
    #: The figure that pods are compared by; "" for a single pod.
    peers: str = ""


_TRAINING = WorkloadKind(
    (
        Figure("samples_per_second", "samples_per_second", "samples/s", SUM, 1),
        Figure("loss", "loss", "loss", MEAN),
    ),
    training=True,
    peers="samples_per_second",
)
#: Keys of the result file of ``vllm bench serve --save-result`` (vllm/benchmarks/serve.py), which
#: the program of the kind prints. Each pod is a server with its own load.
_SERVING = WorkloadKind(
    (
        Figure("output_throughput", "output_tokens", "output tokens/s", SUM, 1),
        Figure("total_token_throughput", "total_tokens", "tokens/s", SUM, 1),
        Figure("request_throughput", "requests", "requests/s", SUM, 1),
        Figure("median_ttft_ms", "ttft_median", "ms to the first token (median)", MEAN, -1),
        Figure("p99_ttft_ms", "ttft_p99", "ms to the first token (99th percentile)", MEAN),
        Figure("median_tpot_ms", "tpot_median", "ms per output token (median)", MEAN, -1),
        Figure("p99_tpot_ms", "tpot_p99", "ms per output token (99th percentile)", MEAN),
        Figure("completed", "completed", "completed requests", SUM),
        Figure("num_prompts", "prompts", "prompts", SUM),
    ),
    training=False,
    peers="output_tokens",
)
KINDS: Dict[str, WorkloadKind] = {
    "synthetic": _TRAINING,
    "vllm": _SERVING,
    "pytorch_fsdp": _TRAINING,
    "ray_lora": _TRAINING,
}
