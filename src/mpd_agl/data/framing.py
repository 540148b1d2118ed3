"""Recordings become frames once: a cache on disk, built in parallel, continued after a kill and mapped into memory.

A cache is two files in `out_dir`, named by a hash of everything the frames depend on: `frames-HASH.npy`, which numpy
can map, and `frames-HASH.json`, its header with the sha256 of the frames. While it is built there is a folder
`frames-HASH.parts` with one file per finished chunk, each written under another name, flushed and renamed, so a part
that exists is a part that is whole. The array appears by a rename too, the header last: without it the array does not
count.

Shapes: N recordings, T frames, H = W = size, C = 2 polarities.
"""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.events import check_config, to_frames
from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError
from mpd_agl.records.progress import progress as bar

VERSION = 1
"""Number of the rule that makes frames from events. It is part of every cache's name, so no cache outlives its rule."""

CHUNK = 64
"""Recordings per part: at most so many are lost when the process is killed."""

Read = Callable[[int], EventStream]


def build_frames(
    read: Read,
    count: int,
    config: FrameConfig,
    out_dir: Path,
    *,
    key: str,
    workers: int = 0,
    progress: bool = True,
) -> NDArray[np.uint8]:
    """Return frames_NTHWC of recordings 0..count-1, memory-mapped: from the cache, or made now.

    `key` names the recordings and all that `read` depends on (data set, split, hash of the files, the simulator's
    seed). With `workers` over 0 the work is done in that many processes, to which `read` is sent; 0 does it here.
    """
    check_config(config)
    if count < 1:
        raise InputError(f"frames need at least one recording, got {count}; check the data folder.")
    header = {
        "version": VERSION,
        "key": key,
        "config": asdict(config),
        "shape": [count, config.num_steps, config.size, config.size, 2],
    }
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    array_path, header_path = out_dir / f"frames-{digest}.npy", out_dir / f"frames-{digest}.json"
    if not _is_done(array_path, header_path, header):
        with _disk_errors(out_dir):
            parts_dir = out_dir / f"frames-{digest}.parts"
            parts_dir.mkdir(parents=True, exist_ok=True)
            try:
                _make_parts(read, count, config, parts_dir, workers=workers, progress=progress)
                _join(parts_dir, count, config, array_path, header_path, header)
            except FileNotFoundError:
                # Another process made the same cache, was faster and has cleaned up.
                if not _is_done(array_path, header_path, header):
                    raise
            shutil.rmtree(parts_dir, ignore_errors=True)
    frames: NDArray[np.uint8] = np.load(array_path, mmap_mode="r", allow_pickle=False)
    return frames


def frames_sha256(frames: NDArray[np.uint8], *, verify: bool = False) -> str:
    """Return the sha256 in the header of frames from `build_frames`; with `verify` the frames are read and checked."""
    path = Path(str(getattr(frames, "filename", "")))
    try:
        digest = str(json.loads(path.with_suffix(".json").read_text())["sha256"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is not a frame cache with a header ({error}); build the frames again.") from error
    if verify and hashlib.sha256(np.ascontiguousarray(frames).data).hexdigest() != digest:
        raise InputError(f"{path} does not match the sha256 in its header; delete it and build the frames again.")
    return digest


def _is_done(array_path: Path, header_path: Path, header: dict[str, Any]) -> bool:
    """Tell whether the cache is complete: the header is there and says the same, and the array has the size it says."""
    try:
        found = json.loads(header_path.read_text())
        size = array_path.stat().st_size
    except (OSError, ValueError):
        return False
    return bool({name: found.get(name) for name in header} == header and found.get("bytes") == size)


def _make_parts(read: Read, count: int, config: FrameConfig, parts_dir: Path, *, workers: int, progress: bool) -> None:
    starts = range(0, count, CHUNK)
    todo = [start for start in starts if not _is_part(parts_dir, start, count, config)]
    if workers > 0:
        made = _in_processes(read, todo, count, config, parts_dir, workers)
    else:
        made = _in_turn(read, todo, count, config, parts_dir)
    with bar("events to frames", len(starts), shown=progress) as report:
        for done, _ in enumerate(made, len(starts) - len(todo) + 1):
            report(done, len(starts))


def _in_turn(read: Read, todo: list[int], count: int, config: FrameConfig, parts_dir: Path) -> Iterator[None]:
    """Make the parts in this process, yielding after each."""
    for start in todo:
        _make_part(read, start, min(start + CHUNK, count), config, parts_dir)
        yield


def _in_processes(
    read: Read, todo: list[int], count: int, config: FrameConfig, parts_dir: Path, workers: int
) -> Iterator[None]:
    """Make the parts in processes, yielding after each; a part that fails stops the others and raises here."""
    try:
        pickle.dumps(read)
    except Exception as error:
        raise TypeError("`read` must be a module's function or a picklable object to be sent to workers") from error
    # The processes are started afresh and not forked, because torch's threads in the parent do not survive a fork.
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        pending: set[Future[None]] = {
            pool.submit(_make_part, read, start, min(start + CHUNK, count), config, parts_dir) for start in todo
        }
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    yield
        except BrokenProcessPool as error:
            raise InputError(
                "a process that made frames ended early (out of memory, or a script without a main guard); "
                "run again with workers=0, finished parts are kept."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _part_path(parts_dir: Path, start: int) -> Path:
    return parts_dir / f"{start:08d}.u8"


def _is_part(parts_dir: Path, start: int, count: int, config: FrameConfig) -> bool:
    path = _part_path(parts_dir, start)
    return path.exists() and path.stat().st_size == (min(start + CHUNK, count) - start) * _bytes_each(config)


def _bytes_each(config: FrameConfig) -> int:
    return config.num_steps * config.size * config.size * 2


def _make_part(read: Read, start: int, stop: int, config: FrameConfig, parts_dir: Path) -> None:
    """Make one part. Its file is either complete or not there."""
    frames = np.empty((stop - start, config.num_steps, config.size, config.size, 2), dtype=np.uint8)
    for i in range(start, stop):
        try:
            frames[i - start] = to_frames(read(i), config)
        except InputError as error:
            raise InputError(f"recording {i}: {error}") from error
    with _disk_errors(parts_dir), _whole_file(_part_path(parts_dir, start), parts_dir) as file:
        file.write(frames.tobytes())


def _join(
    parts_dir: Path, count: int, config: FrameConfig, array_path: Path, header_path: Path, header: dict[str, Any]
) -> None:
    """Put the parts together as one .npy, then write the header, which says that the cache is complete."""
    sha = hashlib.sha256()
    header_path.unlink(missing_ok=True)
    with _whole_file(array_path, parts_dir) as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": tuple(header["shape"])}
        )
        for start in range(0, count, CHUNK):
            part = _part_path(parts_dir, start).read_bytes()
            if len(part) != (min(start + CHUNK, count) - start) * _bytes_each(config):
                raise InputError(f"part {start} of {array_path.name} changed while it was read; run again.")
            sha.update(part)
            file.write(part)
    done = {**header, "sha256": sha.hexdigest(), "bytes": array_path.stat().st_size}
    with _whole_file(header_path, parts_dir) as file:
        file.write(json.dumps(done, indent=2).encode())


@contextlib.contextmanager
def _whole_file(path: Path, work_dir: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name only when it is complete and on disk; on an error it is removed."""
    temporary = work_dir / f"{path.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk is full at {path}; free some space and run again: finished parts are kept."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(f"cannot write to {path} ({error.strerror}); choose another cache folder.") from error
        raise
