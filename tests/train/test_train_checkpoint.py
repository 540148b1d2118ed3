"""A checkpoint is what was written, bit for bit, or it is named as damaged."""

import errno
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from mpd_agl.train import checkpoint
from mpd_agl.train.checkpoint import Damaged, Position
from tests.refused import refused

TENSORS = {
    "model": {"a.weight": torch.randn(3, 4), "a.num": torch.tensor(7), "half": torch.ones(5, dtype=torch.bfloat16)},
    "optimizer": {"momentum_buffer:a.weight": torch.randn(3, 4)},
}
STATE = {"progress": {"epoch": 1, "loss_sum": 0.1 + 0.2}, "name": "ü"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def notes_of(root: Path, *, set_aside: bool) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    notes: list[str] = []
    return checkpoint.newest(root, notes.append, set_aside=set_aside), notes


def test_what_is_read_is_what_was_written(root: Path) -> None:
    path = checkpoint.save(root, Position(1, 40), TENSORS, STATE)
    assert path.name == "epoch-0001-step-00000040"
    got = checkpoint.read(path)
    assert got.at == Position(1, 40)
    assert got.state == STATE
    for group, named in TENSORS.items():
        assert set(got.tensors[group]) == set(named)
        for name, tensor in named.items():
            assert got.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(got.tensors[group][name], tensor)
    assert sorted(p.name for p in root.iterdir()) == [path.name]


def test_one_flipped_bit_anywhere_is_found(root: Path) -> None:
    path = checkpoint.save(root, Position(1, 40), TENSORS, STATE)
    files = sorted(path.iterdir())
    draw = random.Random(0)
    for file in files:
        whole = file.read_bytes()
        every = file.name == "manifest.json"  # the one file that no other file vouches for: all of its bits
        bits = range(8 * len(whole)) if every else [draw.randrange(8 * len(whole)) for _ in range(150)]
        for bit in bits:
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            with pytest.raises(Damaged):
                checkpoint.read(path)
        file.write_bytes(whole)
    checkpoint.read(path)


def test_another_format_is_refused_and_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    path = checkpoint.save(root, Position(0, 1), TENSORS, STATE)
    monkeypatch.undo()
    with refused("other-version", 2):
        notes_of(root, set_aside=True)
    assert path.is_dir()


def test_newest_goes_back_over_damaged_ones(root: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(root, Position(0, step), TENSORS, {**STATE, "step": step})
    (root / Position(0, 3).folder / "state.json").unlink()
    (root / Position(0, 2).folder / "manifest.json").write_text("{")
    got, notes = notes_of(root, set_aside=False)
    assert got is not None
    assert got.state["step"] == 1
    assert len(notes) == 2
    assert len(checkpoint.positions(root)) == 3  # a reader renames nothing
    got, notes = notes_of(root, set_aside=True)
    assert checkpoint.positions(root) == [Position(0, 1)]
    assert [p.name for p in sorted(root.glob("*.damaged"))] == [Position(0, s).folder + ".damaged" for s in (2, 3)]
    shutil.copytree(root / Position(0, 1).folder, root / Position(0, 2).folder)  # damaged again, under the same name
    notes_of(root, set_aside=True)
    assert (root / (Position(0, 2).folder + ".damaged-2")).is_dir()


def test_the_order_is_by_epoch_then_step() -> None:
    assert Position(0, 99) < Position(1, 4) < Position(1, 5) < Position(2, 5)


def test_the_last_and_the_best_are_kept(root: Path) -> None:
    for step in range(1, 7):
        checkpoint.save(root, Position(0, step), {}, {})
        checkpoint.prune(root, 2, Position(0, 2))
    assert checkpoint.positions(root) == [Position(0, 2), Position(0, 5), Position(0, 6)]
    assert not [p for p in root.iterdir() if p.name.startswith(".")]


def test_a_full_disk_leaves_the_checkpoints_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(root, Position(0, 1), TENSORS, STATE)
    original = checkpoint.write_synced

    def full(path: Path, data: bytes) -> None:
        if path.name == "optimizer.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, data)

    monkeypatch.setattr(checkpoint, "write_synced", full)
    with refused("cannot-write", "epoch-0000-step-00000002", "MB free"):
        checkpoint.save(root, Position(0, 2), TENSORS, STATE)
    assert [p.name for p in root.iterdir()] == [Position(0, 1).folder]
    checkpoint.read(root / Position(0, 1).folder)


def test_what_a_killed_process_left_is_removed(root: Path) -> None:
    checkpoint.save(root, Position(0, 1), TENSORS, STATE)
    (root / ".epoch-0000-step-00000002.77.tmp").mkdir()
    (root / ".epoch-0000-step-00000000.old").mkdir()
    checkpoint.clean(root)
    assert [p.name for p in root.iterdir()] == [Position(0, 1).folder]


def test_a_manifest_of_other_types_is_damage_not_a_crash(root: Path) -> None:
    path = checkpoint.save(root, Position(0, 1), {}, {})
    for text in ("[]", "null", "3", '"x"', json.dumps({"files": []}), "{}", "NaN", '{"a": NaN}'):
        (path / "manifest.json").write_text(text)
        with pytest.raises(Damaged):
            checkpoint.read(path)
