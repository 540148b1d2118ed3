"""Unpacking tar and zip archives that come from elsewhere.

No member leaves the target folder, none is a link or a device, and neither the number of members, their total size
nor the ratio of compression passes a limit. The folder is written beside its place and renamed at the end: it is
whole or it is not there.
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
    """Give a folder under `parent` that is gone when the block ends, however it ends.

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
            os.kill(int(pid), 0)  # asks only whether the process lives
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a scratch folder beside `target`; rename it when the block ends well, remove it when it does not."""
    with scratch_folder(target.parent, target.name) as scratch:
        yield scratch
        _sync(scratch)
        os.chmod(scratch, 0o755)
        try:
            os.replace(scratch, target)
        except OSError:
            if not target.is_dir():  # else another process was faster with the same content
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
    meter = _Meter(archive, limits)
    try:
        with archive.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic[:2] == b"PK":
                _extract_zip(archive, raw, folder, meter)
            else:
                _extract_tar(archive, raw, folder, meter, gzipped=magic[:2] == b"\x1f\x8b")
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        gzip.BadGzipFile,
        EOFError,
        NotImplementedError,  # an unknown method of compression
        RuntimeError,  # zipfile: encrypted
        ValueError,
        UnicodeError,
    ) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise InputError(f"{archive} is damaged or no archive ({reason}). Get the file again.") from error


class _Meter:
    """Counts members and bytes, and stops an archive that holds too much."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        if not archive.is_file():
            raise InputError(f"there is no file {archive}. Check the path.")
        self.archive, self.limits = archive, limits
        self.packed, self.members, self.bytes = archive.stat().st_size, 0, 0

    def member(self) -> None:
        self.members += 1
        if self.members > self.limits.members:
            raise InputError(
                f"{self.archive} holds more than {self.limits.members:,} members and was not unpacked. Get the "
                "official file."
            )

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.limits.total_bytes:
            raise InputError(
                f"{self.archive} unpacks to more than {self.limits.total_bytes:,} bytes and was not unpacked. Get "
                "the official file."
            )
        if self.bytes > self.limits.ratio_floor and self.bytes > self.limits.ratio * self.packed:
            raise InputError(
                f"{self.archive} unpacks to more than {self.limits.ratio} times its size, as a zip bomb does, and "
                "was not unpacked. Get the official file."
            )


def _inside(archive: Path, folder: Path, name: str) -> Path:
    """The place of a member under `folder`; refuses every name that leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        raise InputError(
            f"{archive} holds the member {name[:80]!r}, which leads out of its folder. Get the official file."
        )
    return folder.joinpath(*path.parts)


def _write(source: IO[bytes], place: Path, meter: _Meter | None) -> int:
    place.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with place.open("xb") as out:
        while block := source.read(CHUNK):
            size += len(block)
            if meter is not None:
                meter.add(len(block))
            out.write(block)
    return size


def _place_file(archive: Path, source: IO[bytes], place: Path, name: str, meter: _Meter | None) -> int:
    try:
        return _write(source, place, meter)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(f"{archive} holds the member {name[:80]!r} twice. Get the official file.") from error


def _extract_zip(archive: Path, raw: IO[bytes], folder: Path, meter: _Meter) -> None:
    with zipfile.ZipFile(raw) as pack:
        for info in pack.infolist():
            meter.member()
            place = _inside(archive, folder, info.filename)
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise InputError(
                    f"{archive} holds the member {info.filename[:80]!r}, a link or a device. Get the official file."
                )
            if info.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            with pack.open(info) as source:
                size = _place_file(archive, source, place, info.filename, meter)
            if size != info.file_size:
                raise InputError(
                    f"{archive} holds {size:,} bytes of the member {info.filename[:80]!r} and tells {info.file_size:,}. Get the file again."
                )


class _Metered(io.RawIOBase):
    """The decompressed stream of a tar file, metered: what is skipped or belongs to a header counts as well."""

    def __init__(self, source: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
        super().__init__()
        self.source, self.meter = source, meter

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self.source.read(CHUNK if size < 0 else min(size, CHUNK))
        self.meter.add(len(block))
        return block


def _extract_tar(archive: Path, raw: IO[bytes], folder: Path, meter: _Meter, *, gzipped: bool) -> None:
    plain: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if gzipped else raw
    # A stream ("r|"): tarfile never seeks, so every byte passes the meter.
    with tarfile.open(fileobj=_Metered(plain, meter), mode="r|", errorlevel=2) as pack:
        for info in pack:
            meter.member()
            place = _inside(archive, folder, info.name)
            if info.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif info.isreg() and not info.issparse():
                source = pack.extractfile(info)
                assert source is not None
                size = _place_file(archive, source, place, info.name, None)
                if size != info.size:
                    raise InputError(
                        f"{archive} is cut short: {info.name!r} has {size:,} of {info.size:,} bytes. Get the file "
                        "again."
                    )
            else:
                raise InputError(
                    f"{archive} holds the member {info.name[:80]!r}, a link or a device. Get the official file."
                )
    while plain.read(CHUNK):  # reach the checksum at the end of the gzip stream
        meter.add(CHUNK)
    if meter.members == 0:
        raise InputError(f"{archive} is damaged or no archive (it holds no member). Get the file again.")
