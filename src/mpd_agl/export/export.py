"""What every export shares: the hint for a missing extra, and a file that is whole or not there."""

from importlib.util import find_spec
from pathlib import Path

from mpd_agl.errors import InputError
from mpd_agl.records import write_atomic


def check_installed(extra: str, *packages: str) -> None:
    """Raise one sentence that names the extra if a package that it brings is missing."""
    if missing := [p for p in packages if find_spec(p) is None]:
        are = "which is" if len(missing) == 1 else "which are"
        raise InputError(
            f'this needs {" and ".join(missing)}, {are} not installed. Install with: pip install "mpd-agl[{extra}]".'
        )


def write_export(path: Path, content: bytes) -> None:
    """Write the file under its name in one step, so that no reader ever meets half of it."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error
