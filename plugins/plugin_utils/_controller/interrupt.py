# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Handle Ctrl-C while nodes measure the mesh: the play continues to the task that collects the
readings and ends the measurement on the nodes, and stops there.

The summary callback runs in Ansible's main process and handles the signal. The actions run in forks
of this process and see the event.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import typing as t

from ansible.utils.display import Display

#: Set by Ctrl-C. Made in the main process before it forks; None where no callback handles Ctrl-C.
_event: t.Any = None
#: Ansible's own handler, to restore it later.
_before: t.Any = None


def handle() -> None:
    """In the main process: handle Ctrl-C from now on, until `release`."""
    global _event, _before  # pylint: disable=global-statement
    before = signal.getsignal(signal.SIGINT)
    # A shell makes its background jobs ignore SIGINT, and Python sets handlers only in its main
    # thread.
    if (
        _before is not None
        or before in (signal.SIG_IGN, None)
        or threading.current_thread() is not threading.main_thread()
    ):
        return
    _event, _before = multiprocessing.get_context("fork").Event(), before
    signal.signal(signal.SIGINT, _interrupt)


def release() -> None:
    """In the main process: let Ansible handle Ctrl-C again; raises KeyboardInterrupt if it was
    pressed meanwhile.
    """
    global _event, _before  # pylint: disable=global-statement
    if _before is None:
        return
    event, before = _event, _before
    _event = _before = None
    signal.signal(signal.SIGINT, before)
    if event.is_set():
        raise KeyboardInterrupt


def exit_on_sigterm() -> None:
    """In the main process: let SIGTERM end the program by SystemExit, so that Python runs what is
    registered for its end. The handler of ansible-core 2.19 kills the process.
    """
    main_process, before = os.getpid(), signal.getsignal(signal.SIGTERM)
    if (
        before in (signal.SIG_IGN, None)
        or threading.current_thread() is not threading.main_thread()
    ):
        return

    def end(number: int, _frame: t.Any) -> None:
        signal.signal(number, before)
        # The forks of ansible-core 2.18 have this handler too.
        if os.getpid() != main_process:
            os.kill(os.getpid(), number)
            return
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def _interrupt(_number: int, _frame: t.Any) -> None:
    # Ansible handles the next Ctrl-C.
    signal.signal(signal.SIGINT, _before)
    _event.set()
    Display().display(
        "autopilot: interrupted, ending the measurement on the nodes; press Ctrl-C again to "
        "stop at once (the nodes then end the measurement by themselves)",
        stderr=True,
    )


def shield() -> None:
    """In a fork of the main process: ignore Ctrl-C, which the main process handles. The forks of
    ansible-core 2.18 are in the terminal's process group.
    """
    if _event is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def is_pressed() -> bool:
    """Whether Ctrl-C was pressed, so that the play must end the measurement."""
    return _event is not None and bool(_event.is_set())


def wait(seconds: float) -> bool:
    """Wait; returns early, and True, when Ctrl-C is pressed."""
    if _event is not None:
        return bool(_event.wait(max(0.0, seconds)))
    time.sleep(max(0.0, seconds))
    return False
