"""An exported file is whole, checked and under its name, or it is not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpd_agl.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name of a file beside `path` to write and check; it becomes `path` at the end, or nothing stays behind."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        reason = (error.strerror or str(error)).partition("\n")[0]
        raise InputError(f"cannot write {path}: {reason}. Choose another place.") from error
    finally:
        with suppress(OSError):
            beside.unlink()
