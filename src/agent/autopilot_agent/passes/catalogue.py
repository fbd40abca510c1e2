# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The checks that this agent can run: their names, options and durations."""

from __future__ import annotations

from typing import Awaitable, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from _health.node import registry
from _health.node.framework import runner
from _health.node.framework.check import Check, Options
from _health.node.framework.probe import HostSettings
from _health.model import PASSIVE, CheckResult
from _health.spelling import unsupported

from . import worker_client
from _health.agent.settings import AgentSettings

#: Seconds for cleaning up after the deadline of a check that the service itself runs.
FAREWELL = 5.0

#: The check that takes the GPUs above level 1, and seconds for reserving them.
DIAGNOSTIC, RESERVING = "dcgm_diag", 180.0
#: The check whose peers a request may name.
PING = "ping_mesh"

#: Runs one check inside the service, from its options and the run's id.
Runner = Callable[[Options, str], Awaitable[CheckResult]]


class Registered(NamedTuple):
    runner: Runner
    seconds: Callable[[Options], float]
    aliases: Tuple[str, ...]


class Catalogue:
    def __init__(self, settings: AgentSettings, timeout: Optional[float]) -> None:
        """``timeout`` replaces each check's own deadline, in seconds."""
        self.settings = settings
        self.check_settings = HostSettings(
            settings.expected_gpus, settings.nvml_library, settings.host_root, timeout
        )
        self.registered: Dict[str, Registered] = {}

    def register(
        self,
        name: str,
        run: Runner,
        seconds: Callable[[Options], float] = lambda options: 60.0,
        aliases: Sequence[str] = (),
    ) -> None:
        """Register a check that the service itself runs, within ``seconds(options)``; after
        cancellation it has a few seconds to clean up.
        """
        self.registered[name] = Registered(
            run, seconds, tuple(aliases) or registry.short_names().get(name, ())
        )

    @property
    def names(self) -> Dict[str, Tuple[str, ...]]:
        """The checks that this agent can run, with their short names, in the order of a pass."""
        known = {
            name: short
            for name, short in registry.short_names().items()
            if name in self.registered or name in registry.names_of_pass()
        }
        return {**known, **{name: one.aliases for name, one in self.registered.items()}}

    def name_of(self, given: str) -> str:
        """Resolve a name or short name; raises ValueError with what is accepted."""
        for name, short in self.names.items():
            if given == name or given in short:
                return name
        names = [name for own, short in self.names.items() for name in (own, *short)]
        raise ValueError(unsupported("check", given, names))

    def chosen(self, names: Sequence[str]) -> List[str]:
        """Resolve names and short names, each once, in the order of a pass; without names, the
        periodic checks.
        """
        wanted = {self.name_of(name) for name in names or self.settings.periodic_checks}
        return [name for name in self.names if name in wanted]

    def options_of(self, name: str, given: Optional[Options] = None) -> Options:
        """A check's options with its defaults and the agent's settings; raises ValueError for
        invalid ones.
        """
        if name in self.registered:
            return dict(given or {})
        check = registry.load(name)
        options = dict(
            check.defaults(),
            **({"minimum": self.settings.pcie_minimum} if name == "pcie_bandwidth" else {}),
        )
        for option, value in (given or {}).items():
            if option not in check.options:
                raise ValueError(f"{name}: {unsupported('option', option, check.options)}")
            choices = check.options[option].get("choices")
            if choices and value is not None and value not in choices:
                raise ValueError(
                    f"{name}: {option}: {value!r} is invalid; expected one of "
                    f"{', '.join(map(str, choices))}"
                )
            options[option] = value
        check.validate_options(options)
        return options

    def deadline(self, names: Sequence[str], options: Optional[Dict[str, Options]] = None) -> float:
        """Maximum seconds of a pass with these checks once it runs, without waiting time."""
        wanted = {
            name: self.options_of(name, (options or {}).get(name)) for name in self.chosen(names)
        }
        own = [
            self.registered[name].seconds(wanted[name]) + FAREWELL
            for name in wanted
            if name in self.registered
        ]
        reserving = RESERVING if takes_gpus(wanted) else 0.0
        return (
            reserving
            + self.worker_seconds(
                {name: wanted[name] for name in wanted if name not in self.registered}
            )
            + sum(own)
        )

    def worker_seconds(self, wanted: Dict[str, Options]) -> float:
        loaded: List[Tuple[Check, Options]] = [
            (registry.load(name), options) for name, options in wanted.items()
        ]
        seconds = {
            check.name: runner.deadline(check, options, self.check_settings)
            for check, options in loaded
        }
        passive = [seconds[check.name] for check, _options in loaded if check.intrusion == PASSIVE]
        # The core gives a child that does not end a few seconds beyond its deadline.
        rest = [
            seconds[check.name] + 5.0 for check, _options in loaded if check.intrusion != PASSIVE
        ]
        return worker_client.START + max(passive, default=0.0) + 5.0 + sum(rest) if loaded else 0.0


def takes_gpus(wanted: Dict[str, Options]) -> bool:
    """True if one of the checks, with these options, takes the GPUs exclusively."""
    return level_of(wanted.get(DIAGNOSTIC, {})) > 1


def level_of(options: Options) -> int:
    """DCGM's level in the options of the diagnostic."""
    return int(options.get("level") or 1)
