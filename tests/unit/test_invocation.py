# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who started a run, and the command line without secrets."""

from __future__ import annotations

import shlex

import pytest

from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import invocation


@pytest.mark.parametrize(
    "arguments, shown",
    [
        ("-i hosts.yml --limit rack7 -C", "-i hosts.yml --limit rack7 -C"),
        ("-e inflight_hosts=rack7", "-e inflight_hosts=rack7"),
        ("-einflight_hosts=rack7", "-einflight_hosts=rack7"),
        ("-e @options.yml", "-e @options.yml"),
        ("-e pushgateway_password=sesame", "-e 'pushgateway_password=***'"),
        ("-vbe token=sesame", "-vbe 'token=***'"),
        ("--extra-vars token=sesame", "--extra-vars 'token=***'"),
        ("--extra-vars=token=sesame", "'--extra-vars=token=***'"),
        ("--extra token=sesame", "--extra 'token=***'"),
        (
            '-e \'run=job42 token=sesame checks_options={"image_registry":{"password":"sesame"}}\'',
            "-e 'run=job42 token=*** checks_options=***'",
        ),
        ('-e \'{"run": "job42", "token": "sesame"}\'', "-e 'run=job42 token=***'"),
        ("-e 'inflight_notify={webhook: https://sesame}'", "-e 'inflight_notify=***'"),
        ("-e sesame", "-e ''"),
        ("-e '{sesame'", "-e '***'"),
        ("--ssh-common-args=-oProxyCommand=sesame", "--ssh-common-args '***'"),
        ("--ssh-extra-args -oProxyCommand=sesame -b", "--ssh-extra-args '***' -b"),
    ],
)
def test_the_command_line_shows_options_and_no_secret(arguments, shown):
    given = ["/usr/bin/ansible-playbook", *shlex.split(arguments), "autopilot.gpu.inflight"]
    line = invocation.command_line(given, "inflight")
    assert line == f"ansible-playbook {shown} autopilot.gpu.inflight"
    assert "sesame" not in line


def test_the_user_is_who_launched_the_job(monkeypatch):
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("LOGNAME", "ops")
    assert invocation.user_name({}) == "ops"
    monkeypatch.setenv("SUDO_USER", "ada")
    assert invocation.user_name({}) == "ada"
    assert invocation.user_name({"awx_user_name": "grace"}) == "grace"


def test_a_user_without_an_account_is_a_number(monkeypatch):
    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(invocation.os, "getuid", lambda: 1000730000)
    assert invocation.user_name({}) == "1000730000"
