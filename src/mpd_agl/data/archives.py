"""Unpacking tar and zip archives that come from elsewhere.

An archive is refused when a member leads out of the target folder or is a link or a device, and when the number of
members, their total size or the ratio of compression passes a limit. The folder is written beside its place and renamed
at the end, so it is either complete or not there.
"""

import glob
import gzip
import io
import lzma
import os
import re
import shutil
import socket
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from mpd_agl.errors import InputError

CHUNK = 1 << 20
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much an archive may hold. The defaults leave room for every data set we know, and not for much more."""

    members: int = 300_000
    total_bytes: int = 4 << 30
    ratio: int = 200
    """Unpacked bytes per byte of archive. Images and events do not shrink by more than 10."""
    ratio_floor: int = 16 << 20
    """Below this size the ratio says nothing: a small header may shrink a lot."""


DEFAULT_LIMITS = Limits()


@contextmanager
def scratch_folder(parent: Path, name: str = "scratch") -> Iterator[Path]:
    """Make a folder under `parent` and remove it when the block ends, however it ends.

    A full disk and other errors of the system become an `InputError` that names the folder.
    """
    owner = f".{name}.{re.sub(r'[^0-9A-Za-z]', '', socket.gethostname())}-"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _clear(parent, owner)
        scratch = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}.", suffix=".part", dir=parent))
    except OSError as error:
        raise InputError(f"cannot write into {parent}: {error.strerror}. Choose another --cache-dir.") from error
    try:
        yield scratch
    except OSError as error:
        foreign = error.filename is not None and not str(error.filename).startswith(str(scratch))
        what = f"cannot read {error.filename}" if foreign else f"cannot write {parent / name}"
        reason = error.strerror or str(error)
        raise InputError(
            f"{what}: {reason}. Nothing was kept; free some space or choose another --cache-dir."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _clear(parent: Path, owner: str) -> None:
    """Remove what a killed process of this machine left behind."""
    if os.name != "posix":
        return
    for path in parent.glob(f"{glob.escape(owner)}*.part"):
        pid = path.name.removeprefix(owner).split(".")[0]
        try:
            os.kill(int(pid), 0)  # signal 0 only asks whether the process is alive
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a scratch folder beside `target`; it is renamed to it if the block ends well, and removed if not."""
    with scratch_folder(target.parent, target.name) as scratch:
        yield scratch
        _sync(scratch)
        os.chmod(scratch, 0o755)
        try:
            os.replace(scratch, target)
        except OSError:
            if not target.is_dir():  # otherwise another process wrote the same content first
                raise
        _sync(target.parent)


def _sync(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # folders cannot be opened on every system
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def is_archive(path: Path) -> bool:
    """Whether the name is one of an archive that `unpack` reads."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def unpack(archives: Iterable[Path], target: Path, limits: Limits = DEFAULT_LIMITS) -> Path:
    """Unpack .tar, .tar.gz or .zip files together into the new folder `target`, and return it."""
    with new_folder(target) as scratch:
        for archive in archives:
            extract(archive, scratch, limits)
    return target


def extract(archive: Path, folder: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Unpack into `folder`, which the caller made and removes when this fails."""
    if not archive.is_file():
        raise InputError(f"there is no file {archive}. Check the path.")
    try:
        with archive.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == b"PK":
                _extract_zip(raw, folder, _Meter(archive, limits))
            else:
                plain = gzip.GzipFile(fileobj=raw) if magic == b"\x1f\x8b" else raw
                _extract_tar(plain, folder, _Meter(archive, limits))
    except InputError:
        raise
    except _DAMAGE as error:
        raise _damaged(archive, str(error).strip().rstrip(".") or type(error).__name__) from error


# zipfile raises RuntimeError for an encrypted member, and its subclass NotImplementedError for a compression that it
# does not know.
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, ValueError),
)


def _damaged(archive: Path, reason: str) -> InputError:
    return InputError(f"{archive} is damaged or no archive ({reason}). Get the file again.")


class _Meter:
    """Counts members and bytes, and stops an archive that holds too much or what it should not."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.archive, self.limits = archive, limits
        self.packed, self.members, self.bytes = archive.stat().st_size, 0, 0

    def refuse(self, what: str) -> InputError:
        return InputError(f"{self.archive} {what}, and was not unpacked. Get the official file.")

    def member(self, folder: Path, name: str, *, plain: bool, is_dir: bool) -> Path:
        """Count a member and give its place under `folder`."""
        self.members += 1
        if self.members > self.limits.members:
            raise self.refuse(f"holds more than {self.limits.members:,} members")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or any(c in name for c in "\\\0:"):
            raise self.refuse(f"holds the member {name[:80]!r}, which leads out of its folder")
        if not plain:
            raise self.refuse(f"holds the member {name[:80]!r}, a link or a device")
        place = folder.joinpath(*path.parts)
        if is_dir:
            place.mkdir(parents=True, exist_ok=True)
        elif place.exists():
            raise self.refuse(f"holds the member {name[:80]!r} twice")
        return place

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.limits.total_bytes:
            raise self.refuse(f"unpacks to more than {self.limits.total_bytes:,} bytes")
        if self.bytes > self.limits.ratio_floor and self.bytes > self.limits.ratio * self.packed:
            raise self.refuse(f"unpacks to more than {self.limits.ratio} times its size, as a zip bomb does")


def _write(source: IO[bytes], place: Path, meter: _Meter) -> int:
    place.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with place.open("xb") as out:
        while block := source.read(CHUNK):
            size += len(block)
            meter.add(len(block))
            out.write(block)
    return size


def _extract_zip(raw: IO[bytes], folder: Path, meter: _Meter) -> None:
    with zipfile.ZipFile(raw) as pack:
        for info in pack.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            place = meter.member(folder, info.filename, plain=plain, is_dir=info.is_dir())
            if info.is_dir():
                continue
            with pack.open(info) as source:
                size = _write(source, place, meter)
            if size != info.file_size:
                raise meter.refuse(f"holds {size:,} bytes of {info.filename[:80]!r} and says {info.file_size:,}")


class _Metered(io.RawIOBase):
    """The decompressed stream of a tar file, metered: bytes that are skipped or belong to a header count as well."""

    def __init__(self, source: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
        super().__init__()
        self.source, self.meter = source, meter

    def read(self, size: int = -1) -> bytes:
        block = self.source.read(CHUNK if size < 0 else min(size, CHUNK))
        self.meter.add(len(block))
        return block


def _extract_tar(plain: IO[bytes] | gzip.GzipFile, folder: Path, meter: _Meter) -> None:
    # A stream ("r|"): tarfile never seeks, so every byte passes the meter.
    with tarfile.open(fileobj=_Metered(plain, meter), mode="r|", errorlevel=2) as pack:
        for info in pack:
            is_plain = info.isdir() or (info.isreg() and not info.issparse())
            meter.member(folder, info.name, plain=is_plain, is_dir=info.isdir())
            pack.extract(info, folder, filter="data")
    while block := plain.read(CHUNK):  # reach the checksum at the end of the gzip stream
        meter.add(len(block))
    if meter.members == 0:
        raise _damaged(meter.archive, "it holds no member")
