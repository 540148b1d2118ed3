"""The frame cache: the same frames however it was made, continued after a kill, and never half of it."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import framing
from mpd_agl.data.events import to_frames
from mpd_agl.data.framing import build_frames, frames_sha256
from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError
from tests.data.samplefiles import events

CONFIG = FrameConfig(num_steps=3, size=8)
COUNT = 2 * framing.CHUNK + 5


def read(i: int) -> EventStream:
    return events(40, 16, seed=i, last=1000)


def read_slowly(i: int) -> EventStream:
    time.sleep(0.01)
    return read(i)


def want() -> np.ndarray:
    return np.stack([to_frames(read(i), CONFIG) for i in range(COUNT)])


def names(folder: Path) -> list[str]:
    return sorted(path.name.split(".", 1)[1] for path in folder.iterdir())


def test_frames_are_made_once_and_mapped(tmp_path):
    frames = build_frames(read, COUNT, CONFIG, tmp_path, key="test", progress=False)
    assert isinstance(frames, np.memmap)
    np.testing.assert_array_equal(frames, want())
    assert names(tmp_path) == ["json", "npy"]
    assert frames_sha256(frames) == hashlib.sha256(want().tobytes()).hexdigest()

    def never(i: int) -> EventStream:
        raise AssertionError("the cache was not used")

    np.testing.assert_array_equal(build_frames(never, COUNT, CONFIG, tmp_path, key="test", progress=False), want())


def test_another_key_or_config_is_another_cache(tmp_path):
    build_frames(read, 3, CONFIG, tmp_path, key="a", progress=False)
    build_frames(read, 3, CONFIG, tmp_path, key="b", progress=False)
    build_frames(read, 3, FrameConfig(num_steps=3, size=8, mode="binary"), tmp_path, key="a", progress=False)
    build_frames(read, 2, CONFIG, tmp_path, key="a", progress=False)
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_a_failed_run_is_continued(tmp_path):
    asked: list[int] = []

    def fails(i: int) -> EventStream:
        asked.append(i)
        if i == framing.CHUNK + 1:
            raise InputError("the file is empty")
        return read(i)

    with pytest.raises(InputError, match=f"recording {framing.CHUNK + 1}: the file is empty"):
        build_frames(fails, COUNT, CONFIG, tmp_path, key="k", progress=False)
    assert names(tmp_path) == ["parts"]

    def continues(i: int) -> EventStream:
        asked.append(i)
        return read(i)

    asked.clear()
    frames = build_frames(continues, COUNT, CONFIG, tmp_path, key="k", progress=False)
    assert min(asked) == framing.CHUNK  # the first part was kept
    np.testing.assert_array_equal(frames, want())
    assert names(tmp_path) == ["json", "npy"]


def test_a_cut_part_is_made_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", lambda *_: (_ for _ in ()).throw(InputError("stop")))
        with pytest.raises(InputError, match="stop"):
            build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False)
    part = sorted(tmp_path.glob("*.parts/*.u8"))[1]
    part.write_bytes(part.read_bytes()[:-1])
    np.testing.assert_array_equal(build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False), want())


def test_a_killed_run_is_continued(tmp_path):
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = [sys.argv[2], sys.argv[3]]\n"
        "import tests.data.test_events_cache as t\n"
        "t.build_frames(t.read_slowly, t.COUNT, t.CONFIG, Path(sys.argv[1]), key='k', progress=False)"
    )
    here, src = Path(__file__).parents[2], Path(framing.__file__).parents[2]
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(here), str(src)])
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("*.parts/*.u8")) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.kill()
    run.wait()
    assert not list(tmp_path.glob("*.npy"))
    np.testing.assert_array_equal(build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False), want())
    assert names(tmp_path) == ["json", "npy"]


@pytest.mark.parametrize("fails_at", [1, 2, 4, 5])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(tmp_path, monkeypatch, fails_at):
    """Three parts, the array and the header are flushed in turn; the disk fills at one of them."""
    flushed = 0

    def fsync(descriptor: int) -> None:
        nonlocal flushed
        flushed += 1
        if flushed == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match="cannot write .*No space left on device. Finished parts are kept"):
        build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False)
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.glob("*.json"))
    assert len(list(tmp_path.glob("*.parts/*.u8"))) == min(fails_at - 1, 3)
    np.testing.assert_array_equal(build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False), want())


def test_a_large_temporary_file_is_in_the_folder_that_is_removed(tmp_path, monkeypatch):
    seen = []
    write = np.lib.format.write_array_header_1_0
    monkeypatch.setattr(
        np.lib.format, "write_array_header_1_0", lambda file, d: seen.append(Path(file.name)) or write(file, d)
    )
    build_frames(read, 3, CONFIG, tmp_path, key="k", progress=False)
    assert [path.parent.suffix for path in seen] == [".parts"]
    assert names(tmp_path) == ["json", "npy"]


def test_a_cut_array_is_made_again(tmp_path):
    path = Path(build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False).filename)
    path.write_bytes(path.read_bytes()[:-7])
    np.testing.assert_array_equal(build_frames(read, COUNT, CONFIG, tmp_path, key="k", progress=False), want())
