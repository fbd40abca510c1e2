# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real Pushgateway, Prometheus and Alertmanager on loopback, each in a directory of its own,
and a receiver of webhooks.

Used as context managers; nothing of them is left when they are closed.
"""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

#: Debian's names of the programs, and the Debian packages that bring them.
PACKAGES = {
    "prometheus-pushgateway": "prometheus-pushgateway",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


def missing(*programs):
    """Why a test that needs these programs cannot run; empty when it can."""
    absent = [
        f"{program} (package {PACKAGES[program]})"
        for program in programs
        if not shutil.which(program)
    ]
    return f"needs {', '.join(absent)}" if absent else ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def eventually(ask, seconds=30, every=0.2):
    """The first true answer of ``ask``; AssertionError with the last one when there is none in
    time.
    """
    until, answer = time.monotonic() + seconds, None
    while time.monotonic() < until:
        answer = ask()
        if answer:
            return answer
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s; last answer: {answer!r}")


class _Server:
    """A program that listens on loopback until it is closed."""

    ready = "/-/ready"

    def __init__(self, directory, port=None):
        self.directory, self.port = Path(directory), port or free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def argv(self):
        raise NotImplementedError

    def start(self):
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
        )
        log.close()
        eventually(self._is_ready, 30, 0.1)
        return self

    def _is_ready(self):
        if self._process.poll() is not None:
            raise AssertionError(
                f"{self.argv()[0]} ended: {(self.directory / 'log').read_text()[-2000:]}"
            )
        try:
            get(self.url + self.ready)
            return True
        except OSError:
            return False

    def stop(self):
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_how):
        self.stop()


class Pushgateway(_Server):
    """``arguments`` are further command line arguments, such as --push.disable-consistency-check."""

    def __init__(self, directory, port=None, arguments=()):
        super().__init__(directory, port)
        self.arguments = list(arguments)

    def argv(self):
        return [
            "prometheus-pushgateway",
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--persistence.file={self.directory}/pushed",
            "--persistence.interval=1s",
            *self.arguments,
        ]

    def groups(self):
        """The groups as the API has them: {frozenset of label items: {metric: entry}}."""
        data = json.loads(get(f"{self.url}/api/v1/metrics"))["data"]
        return {
            frozenset(group["labels"].items()): {
                name: entry
                for name, entry in group.items()
                if isinstance(entry, dict) and name != "labels"
            }
            for group in data
        }


class Prometheus(_Server):
    """Scrapes a Pushgateway once a second; ``rules`` are files, ``alertmanager`` a server,
    ``scrapes`` further scrape jobs.
    """

    def __init__(
        self,
        directory,
        pushgateway,
        rules=(),
        alertmanager=None,
        port=None,
        interval="1s",
        scrapes=(),
    ):
        super().__init__(directory, port)
        self.scrapes = list(scrapes)
        self.pushgateway, self.rules, self.alertmanager, self.interval = (
            pushgateway,
            [str(rule) for rule in rules],
            alertmanager,
            interval,
        )

    def argv(self):
        config = {
            "global": {"scrape_interval": self.interval, "evaluation_interval": self.interval},
            "rule_files": self.rules,
            "scrape_configs": [
                {
                    "job_name": "pushgateway",
                    "honor_labels": True,
                    "static_configs": [{"targets": [f"127.0.0.1:{self.pushgateway.port}"]}],
                },
                *self.scrapes,
            ],
        }
        if self.alertmanager:
            config["alerting"] = {
                "alertmanagers": [
                    {"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager.port}"]}]}
                ]
            }
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        return [
            "prometheus",
            f"--config.file={self.directory}/prometheus.yml",
            f"--storage.tsdb.path={self.directory}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def query(self, expression):
        """The series of an instant query: [{"metric": labels, "value": [time, text]}];
        AssertionError with Prometheus's words on a bad one.
        """
        try:
            answer = json.loads(
                get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
            )
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return answer["data"]["result"]

    def alerts(self):
        """Names and labels of the alerts that fire."""
        return [
            alert["labels"]
            for alert in json.loads(get(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
            if alert["state"] == "firing"
        ]


class Alertmanager(_Server):
    """With the configuration in a file."""

    def __init__(self, directory, config, port=None):
        super().__init__(directory, port)
        self.config = Path(config)

    def argv(self):
        return [
            "prometheus-alertmanager",
            f"--config.file={self.config}",
            f"--storage.path={self.directory}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
            "--log.level=debug",
        ]


class Webhook:
    """Receives JSON by POST on loopback and keeps it in ``received``."""

    def __init__(self):
        self.received = []
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_words):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_how):
        self._server.shutdown()
        self._server.server_close()
