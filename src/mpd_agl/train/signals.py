"""Ctrl-C and SIGTERM: the first asks the loop to save and end, the second ends the process at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

EXIT_SAVED = 75
"""The run was stopped by a signal, is saved and can be continued (EX_TEMPFAIL: a scheduler may start it again)."""
EXIT_AT_ONCE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """The loop saved and ended because a signal asked it to."""

    def __init__(self, by: str, step: int) -> None:
        super().__init__(f"{by} at step {step}")
        self.by, self.step = by, step


class StopRequest:
    """While it is entered, a signal sets `asked`, which the loop reads between steps; only in the main thread.

    `patient`: further signals change nothing. A launcher passes on what the terminal has sent already, and kills what
    does not end.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.asked: str | None = None
        self.patient = patient
        self._old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and not self.patient:
            os._exit(EXIT_AT_ONCE)  # no clean-up on purpose: what is on the disk is whole, and the user asked twice
        self.asked = self.asked or signal.Signals(number).name
