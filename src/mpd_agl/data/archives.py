"""Unpacking tar and zip archives that come from elsewhere.

An archive is refused when a member leads out of the target folder or is a link or a device, and when the number of
members, their total size or the ratio of compression passes a limit.
"""

import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

from mpd_agl.data.atomic import new_folder
from mpd_agl.errors import InputError

CHUNK = 1 << 20
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
MOST_MEMBERS = 300_000
MOST_BYTES = 4 << 30
MOST_RATIO, RATIO_FLOOR = 200, 16 << 20
"""Unpacked bytes per byte of archive: images and events do not shrink by more than 10. A small header may."""
# zipfile raises RuntimeError for an encrypted member, and its subclass NotImplementedError for a compression that it
# does not know.
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, ValueError),
)


def is_archive(path: Path) -> bool:
    """Whether the name is one of an archive that `extract` reads."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def unpack(archives: Iterable[Path], target: Path) -> Path:
    """Unpack .tar, .tar.gz or .zip files together into the new folder `target`, and return it."""
    with new_folder(target) as scratch:
        for archive in archives:
            extract(archive, scratch)
    return target


def extract(archive: Path, folder: Path) -> None:
    """Unpack into `folder`, which the caller made and removes when this fails."""
    if not archive.is_file():
        raise InputError(f"there is no file {archive}. Check the path.")
    try:
        with archive.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == b"PK":
                _extract_zip(raw, _Meter(archive, folder))
            else:
                _extract_tar(gzip.GzipFile(fileobj=raw) if magic == b"\x1f\x8b" else raw, _Meter(archive, folder))
    except InputError:
        raise
    except _DAMAGE as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise InputError(f"{archive} is damaged or no archive ({reason}). Get the file again.") from error


class _Meter:
    """Counts members and bytes, and stops an archive that holds too much or what it should not."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.packed, self.members, self.bytes = archive.stat().st_size, 0, 0

    def refuse(self, what: str) -> InputError:
        return InputError(f"{self.archive} {what}, and was not unpacked. Get the official file.")

    def member(self, name: str, *, plain: bool, is_dir: bool) -> Path:
        """Count a member and give its place."""
        self.members += 1
        path, shown = PurePosixPath(name), f"holds the member {name[:80]!r}"
        if self.members > MOST_MEMBERS:
            raise self.refuse(f"holds more than {MOST_MEMBERS:,} members")
        if path.is_absolute() or ".." in path.parts or any(c in name for c in "\\\0:"):
            raise self.refuse(f"{shown}, which leads out of its folder")
        if not plain:
            raise self.refuse(f"{shown}, a link or a device")
        place = self.folder.joinpath(*path.parts)
        (place if is_dir else place.parent).mkdir(parents=True, exist_ok=True)
        if not is_dir and place.exists():
            raise self.refuse(f"{shown} twice")
        return place

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > MOST_BYTES:
            raise self.refuse(f"unpacks to more than {MOST_BYTES:,} bytes")
        if self.bytes > RATIO_FLOOR and self.bytes > MOST_RATIO * self.packed:
            raise self.refuse(f"unpacks to more than {MOST_RATIO} times its size, as a zip bomb does")


class _Metered(io.RawIOBase):
    """A decompressed stream, metered: bytes that are skipped or belong to a header count as well."""

    def __init__(self, source: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
        super().__init__()
        self.source, self.meter = source, meter

    def read(self, size: int = -1) -> bytes:
        block = self.source.read(CHUNK if size < 0 else min(size, CHUNK))
        self.meter.add(len(block))
        return block


def _extract_zip(raw: IO[bytes], meter: _Meter) -> None:
    with zipfile.ZipFile(raw) as pack:
        for info in pack.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            place = meter.member(info.filename, plain=plain, is_dir=info.is_dir())
            if info.is_dir():
                continue
            with pack.open(info) as source, place.open("xb") as out:
                _copy(_Metered(source, meter), out)
            if (size := place.stat().st_size) != info.file_size:
                raise meter.refuse(f"holds {size:,} bytes of {info.filename[:80]!r} and says {info.file_size:,}")


def _copy(source: io.RawIOBase, out: IO[bytes]) -> None:
    while block := source.read(CHUNK):
        out.write(block)


def _extract_tar(plain: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
    metered = _Metered(plain, meter)
    # A stream ("r|"): tarfile never seeks, so every byte passes the meter.
    with tarfile.open(fileobj=metered, mode="r|", errorlevel=2) as pack:
        for info in pack:
            is_plain = info.isdir() or (info.isreg() and not info.issparse())
            meter.member(info.name, plain=is_plain, is_dir=info.isdir())
            pack.extract(info, meter.folder, filter="data")
    while metered.read():  # reach the checksum at the end of the gzip stream
        pass
    if meter.members == 0:
        raise tarfile.ReadError("it holds no member")
