"""How far a command is: progress bars on standard error, if that is a terminal; durations in words."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    text: str, total: int | None, *, as_bytes: bool = False, shown: bool = True
) -> Iterator[Callable[[int, int | None], None]]:
    """Give a function `(done, total)` that moves the bar."""
    if not (shown and sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(), TransferSpeedColumn()) if as_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as a person reads them.

    >>> duration(42), duration(3725), duration(200000)
    ('42 s', '1 h 02 min', '55 h 33 min')
    """
    s = round(seconds)
    if s < 120:
        return f"{s} s"
    return f"{s // 3600} h {s % 3600 // 60:02d} min" if s >= 3600 else f"{s // 60} min {s % 60:02d} s"
