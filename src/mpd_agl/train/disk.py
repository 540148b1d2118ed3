"""What the operating system says about a disk, as one sentence for a person."""

import errno
import shutil
from pathlib import Path

from mpd_agl.errors import InputError


def explain(error: OSError, path: Path, stands: str = "") -> InputError:
    """The error for a file that could not be written: path, reason, free space, what to do."""
    there = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = f"{shutil.disk_usage(there).free / 2**20:.1f} MB free"
        except OSError:
            free = "free space unknown"
        reason, fix = f"the disk is full ({free})", "Make room"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason, fix = "no permission to write there", "Choose another --runs-dir or change the permissions"
    else:
        reason, fix = error.strerror or str(error), "Check the path"
    then = f" {stands}" if stands else ""
    return InputError(f"cannot write {path}: {reason}. {fix}.{then}")
