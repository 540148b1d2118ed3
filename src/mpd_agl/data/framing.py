"""Recordings become frames once: a cache on disk, built in parallel, continued after a kill and mapped into memory.

A cache is two files in `out_dir`, named by a hash of everything the frames depend on: `frames-HASH.npy`, which numpy
can map, and `frames-HASH.json`, its header with the sha256 of the frames. While it is built there is a folder
`frames-HASH.parts` with one file per finished chunk, each written under another name, flushed and renamed, so a part
that exists is a part that is whole. The array appears by a rename too, the header last: without it the array does not
count.

Shapes: N recordings, T frames, H = W = size, C = 2 polarities.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.atomic import disk_errors, whole_file
from mpd_agl.data.events import to_frames
from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError
from mpd_agl.records.progress import progress as bar

VERSION = 1
"""Number of the rule that makes frames from events. It is part of every cache's name, so no cache outlives its rule."""

CHUNK = 64
"""Recordings per part: at most so many are lost when the process is killed."""


def build_frames(
    read: Callable[[int], EventStream],
    count: int,
    config: FrameConfig,
    out_dir: Path,
    *,
    key: str,
    progress: bool = True,
) -> NDArray[np.uint8]:
    """Return frames_NTHWC of recordings 0..count-1, memory-mapped: from the cache, or made now.

    `key` names the recordings and all that `read` depends on (data set, split, hash of the files, the simulator's
    seed).
    """
    if count < 1:
        raise InputError(f"frames need at least one recording, got {count}; check the data folder.")
    shape = (count, config.num_steps, config.size, config.size, 2)
    header = {"version": VERSION, "key": key, "config": asdict(config), "shape": list(shape)}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    array_path, header_path = out_dir / f"frames-{digest}.npy", out_dir / f"frames-{digest}.json"
    if not _is_done(array_path, header_path, header):
        parts_dir = out_dir / f"frames-{digest}.parts"
        try:
            with disk_errors(array_path, "Finished parts are kept"):
                sha256 = _make(read, shape, config, parts_dir, array_path, progress=progress)
                done = {**header, "sha256": sha256, "bytes": array_path.stat().st_size}
                with whole_file(header_path) as file:
                    file.write(json.dumps(done, indent=2).encode())
        except InputError:
            # Another process may have made the same cache, been faster and cleaned up.
            if not _is_done(array_path, header_path, header):
                raise
        shutil.rmtree(parts_dir, ignore_errors=True)
    frames: NDArray[np.uint8] = np.load(array_path, mmap_mode="r", allow_pickle=False)
    return frames


def frames_sha256(frames: NDArray[np.uint8]) -> str:
    """The sha256 in the header of frames from `build_frames`."""
    path = Path(str(getattr(frames, "filename", "")))
    try:
        return str(json.loads(path.with_suffix(".json").read_text())["sha256"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is not a frame cache with a header ({error}); build the frames again.") from error


def _is_done(array_path: Path, header_path: Path, header: dict[str, Any]) -> bool:
    """Whether the cache is complete: the header is there and says the same, and the array has the size it says."""
    try:
        found = json.loads(header_path.read_text())
        size = array_path.stat().st_size
    except (OSError, ValueError):
        return False
    return bool({name: found.get(name) for name in header} == header and found.get("bytes") == size)


def _make(
    read: Callable[[int], EventStream],
    shape: tuple[int, ...],
    config: FrameConfig,
    parts_dir: Path,
    array_path: Path,
    *,
    progress: bool,
) -> str:
    """Make the parts that are missing and put all together as one .npy; give the sha256 of the frames."""
    count, each = shape[0], int(np.prod(shape[1:]))
    parts = {start: parts_dir / f"{start:08d}.u8" for start in range(0, count, CHUNK)}
    with bar("events to frames", len(parts), shown=progress) as report:
        for done, (start, path) in enumerate(parts.items(), 1):
            numbers = range(start, min(start + CHUNK, count))
            if not (path.exists() and path.stat().st_size == len(numbers) * each):
                frames = [_frames(read, i, config) for i in numbers]
                with whole_file(path) as file:
                    file.write(np.stack(frames).tobytes())
            report(done, len(parts))
    sha256, size = hashlib.sha256(), 0
    with whole_file(array_path, parts_dir) as file:  # a killed process leaves nothing but that folder
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for path in parts.values():
            part = path.read_bytes()
            sha256.update(part)
            size += len(part)
            file.write(part)
        if size != count * each:
            raise InputError(f"a part of {array_path.name} changed while it was read; run again.")
    return sha256.hexdigest()


def _frames(read: Callable[[int], EventStream], i: int, config: FrameConfig) -> NDArray[np.uint8]:
    try:
        return to_frames(read(i), config)
    except InputError as error:
        error.args = (f"recording {i}: {error}", *error.args[1:])
        raise
