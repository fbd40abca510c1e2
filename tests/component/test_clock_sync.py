# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""clock_sync on nodes where one daemon or another runs and answers as its program prints, and on
this machine's own kernel.
"""

from __future__ import annotations

import pytest

CHRONYD = "proc/1803"
REFERENCE = "A9FEA97B,169.254.169.123,4"
REST = "-0.000003,0.000034,-12.345,0.001,0.045,0.000345,0.000087,64.2"

TIMESYNCD = """case "$*" in
show) cat <<'END'
Timezone=Etc/UTC
LocalRTC=no
CanNTP=yes
NTP=yes
NTPSynchronized={synchronised}
TimeUSec=Sat 2025-10-11 10:00:00 UTC
END
;;
*) {status} ;;
esac"""
STATUS = """cat <<'END'
       Server: 185.125.190.56 (ntp.test)
Poll interval: 34min 8s (min: 32s; max 34min 8s)
         Leap: normal
      Version: 4
      Stratum: 2
    Reference: C0248F87
    Precision: 1us (-25)
Root distance: 500us (max: 5s)
       Offset: -1.306ms
        Delay: 31.951ms
       Jitter: 1.206ms
 Packet count: 12
    Frequency: +12.345ppm
END
"""
NTPQ = """cat <<'END'
associd=0 status={status} {leap}, {sync}, 1 event, clock_sync,
version="ntpd 4.2.8p15@1.3728-o Wed Feb 16 17:13:02 UTC 2022 (1)",
processor="x86_64", system="Linux/6.8.0-60-generic", leap=00, stratum={stratum},
precision=-24, rootdelay=1.236, rootdisp=22.108, refid=10.0.0.1,
reftime=ec95d3c0.8d0c1a2b  Sat, Oct 11 2025 10:00:00.550,
clock=ec95d3e0.1a2b3c4d  Sat, Oct 11 2025 10:00:32.102, peer=31415, tc=6, mintc=3,
offset={offset}, frequency=-12.345, sys_jitter=0.036402, clk_jitter=0.014
END
"""


def chrony(script, **files):
    return {"gpus": 0, "programs": {"chronyc": script}, "files": files}


def other(name, program, script):
    """A node where not chronyd runs, but this."""
    files = {
        CHRONYD: None,
        "proc/1804/stat": f"1804 ({name[:15]}) S 1 1804 1804 0 -1 4194304" + " 0" * 43,
        "proc/1804/comm": name[:15],
    }
    return {"gpus": 0, "programs": {"chronyc": None, program: script}, "files": files}


#: Scenario -> status, codes, and what was read of source, synchronised, offset and stratum.
TABLE = {
    "as it comes": ({"gpus": 0}, "pass", [], ("chrony", True, 0.000012345, 4)),
    "chrony, half a second off": (
        chrony(f"echo '{REFERENCE},1700000000.5,-0.512345,{REST},Normal'"),
        "warn",
        ["clock_is_off", "clock_not_updated"],
        ("chrony", True, -0.512345, 4),
    ),
    "chrony without a server": (
        chrony(
            "echo "
            "'00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,"
            "1.000000000,1.000000000,0.0,Not synchronised'"
        ),
        "warn",
        ["clock_not_synchronised"],
        ("chrony", False, None, 0),
    ),
    "timesyncd": (
        other(
            "systemd-timesyncd", "timedatectl", TIMESYNCD.format(synchronised="yes", status=STATUS)
        ),
        "pass",
        [],
        ("timesyncd", True, -1.306e-3, 2),
    ),
    "timesyncd before its status could be asked": (
        other(
            "systemd-timesyncd",
            "timedatectl",
            TIMESYNCD.format(synchronised="yes", status="echo 'Unknown operation' >&2; exit 1"),
        ),
        "pass",
        [],
        ("timesyncd", True, None, None),
    ),
    "timesyncd without a server": (
        other(
            "systemd-timesyncd", "timedatectl", TIMESYNCD.format(synchronised="no", status=STATUS)
        ),
        "warn",
        ["clock_not_synchronised"],
        ("timesyncd", False, -1.306e-3, 2),
    ),
    "ntpd": (
        other(
            "ntpd",
            "ntpq",
            NTPQ.format(
                status="0615", leap="leap_none", sync="sync_ntp", stratum=3, offset="-0.123"
            ),
        ),
        "warn",
        ["clock_not_updated"],
        ("ntpd", True, -0.000123, 3),
    ),
    "ntpd without a server": (
        other(
            "ntpd",
            "ntpq",
            NTPQ.format(
                status="c016", leap="leap_alarm", sync="sync_unspec", stratum=16, offset="0.000"
            ),
        ),
        "warn",
        ["clock_not_synchronised"],
        ("ntpd", False, None, 16),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_daemon_is_understood(case, node, measure):
    scenario, status, codes, read = TABLE[case]
    outcome = measure(node(scenario), "clock_sync")
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == (status, codes)
    assert (
        tuple(
            outcome.readings[name]
            for name in ("source", "synchronised", "offset_seconds", "stratum")
        )
        == read
    )
    assert "unheard" not in outcome.readings


@pytest.mark.parametrize(
    "script, reason",
    [
        ("echo '506 Cannot talk to daemon'; exit 1", "failed"),
        ("echo 'Reference ID : 1'", "not_understood"),
        ("echo '1,2,x,4,5,6,Normal'", "not_understood"),
        ("exec sleep 60", "timeout"),
    ],
)
def test_a_daemon_that_does_not_answer_is_an_error(script, reason, node, measure):
    outcome = measure(node({**chrony(script), "clock": "unsynchronised"}), "clock_sync", timeout=4)
    assert (outcome.readings["unheard"]["reason"], outcome.readings["synchronised"]) == (
        reason,
        None,
    )
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == (
        "unknown",
        ["clock_not_told"],
    )


#: Whether chrony runs (and no answer), what the kernel says -> status, codes.
KERNEL = {
    (True, "synchronised"): ("pass", []),
    (True, "unsynchronised"): ("unknown", ["clock_not_told"]),
    (True, "refused"): ("unknown", ["clock_not_told"]),
    (False, "synchronised"): ("pass", []),
    (False, "unsynchronised"): ("warn", ["clock_not_synchronised"]),
    (False, "refused"): ("unknown", ["clock_not_told"]),
}


@pytest.mark.parametrize("runs, clock", KERNEL)
def test_the_kernel_is_heard_where_no_daemon_is(runs, clock, node, measure):
    scenario = {**chrony("exit 1", **({} if runs else {CHRONYD: None})), "clock": clock}
    outcome = measure(node(scenario), "clock_sync")
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == KERNEL[
        runs, clock
    ]
    assert outcome.readings["source"] == ("chrony" if runs else None)


def test_the_kernel_of_this_machine(node, measure):
    kernel = measure(node({"gpus": 0}), "clock_sync").readings["kernel"]
    # Not longer than what the kernel counts up to (NTP_PHASE_LIMIT): the structure is read as it is
    # written.
    assert kernel["synchronised"] in (True, False) and 0 <= kernel["maximum_error_seconds"] <= 16
