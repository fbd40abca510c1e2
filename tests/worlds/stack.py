# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator has after the playbook `monitoring`: a real Pushgateway, Prometheus and
Alertmanager with the files that the role wrote.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import sys
import time

import yaml
from servers import Alertmanager, Prometheus, Pushgateway, Webhook, free_port

from controller import ROOT

PLAYBOOK = ROOT / "playbooks/monitoring.yml"
PROGRAMS = ("prometheus", "promtool", "prometheus-pushgateway", "prometheus-alertmanager", "amtool")


class _OfRole(Prometheus):
    """Prometheus with the configuration in a file."""

    config = None

    def argv(self):
        super().argv()
        return [
            f"--config.file={self.config}" if word.startswith("--config.file=") else word
            for word in super().argv()
        ]


class Stack:
    """All four, connected; ``received`` is what a person was told, in order."""

    def __init__(self, controller, directory, **variables):
        self.controller, self.directory = controller, directory
        self.etc, self.defaults = directory / "etc", directory / "default"
        self.webhook = Webhook()
        self.gateway = Pushgateway(
            directory / "gateway", arguments=["--push.disable-consistency-check"]
        )
        self.alertmanager = Alertmanager(directory / "alertmanager", self.etc / "alertmanager.yml")
        self.prometheus = _OfRole(directory / "prometheus", self.gateway, port=free_port())
        self.prometheus.config = self.etc / "prometheus.yml"
        self.variables = {
            "ansible_python_interpreter": sys.executable,
            "monitoring_become": False,
            "monitoring_components": ["pushgateway", "prometheus", "alertmanager"],
            "monitoring_config_dir": str(self.etc),
            "monitoring_defaults_dir": str(self.defaults),
            "monitoring_data_dir": str(directory),
            "monitoring_group": grp.getgrgid(os.getgid()).gr_name,
            "monitoring_scrape_interval": "1s",
            "monitoring_webhook": [{"url": self.webhook.url}],
            "monitoring_pushgateway_address": f"127.0.0.1:{self.gateway.port}",
            "monitoring_alertmanager_address": f"127.0.0.1:{self.alertmanager.port}",
            "monitoring_group_wait": "2s",
            "monitoring_group_interval": "1s",
            **variables,
        }

    @property
    def received(self):
        return [
            (alert["status"], alert["labels"])
            for message in list(self.webhook.received)
            for alert in message["alerts"]
        ]

    def of_node(self, node, status):
        """Names of the alerts about a node that the last message of this status told."""
        told = [
            {
                alert["labels"]["alertname"]
                for alert in message["alerts"]
                if alert["status"] == status
            }
            for message in list(self.webhook.received)
            if message["groupLabels"].get("node") == node
        ]
        return next((names for names in reversed(told) if names), set())

    def converge(self, *arguments, **variables):
        """The finished playbook. Its variables are in a file, since -vvvv shows what stands on the
        command line.
        """
        given = self.directory / "variables.json"
        given.write_text(json.dumps({**self.variables, **variables}), encoding="utf-8")
        done = self.controller.run(
            "ansible-playbook",
            "-i",
            "localhost,",
            "-c",
            "local",
            PLAYBOOK,
            "-e",
            f"@{given}",
            *arguments,
            cwd=self.directory,
            ANSIBLE_PIPELINING="true",
        )
        given.unlink()
        return done

    def __enter__(self):
        for directory in (self.etc, self.defaults):
            directory.mkdir()
        # As an operator's, with a clock that suits tests.
        (self.etc / "prometheus.yml").write_text(
            yaml.safe_dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}),
            encoding="utf-8",
        )
        done = self.converge()
        assert done.returncode == 0, done.stdout
        with contextlib.ExitStack() as running:
            for one in (self.webhook, self.gateway, self.alertmanager, self.prometheus):
                running.enter_context(one)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_how):
        self._running.close()


def stays(ask, seconds=5):
    """Whether it is true all the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not ask():
            return False
        time.sleep(0.2)
    return True
