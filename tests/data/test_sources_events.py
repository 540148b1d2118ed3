"""Event sets from files to frames, with the real framing and splits."""

from dataclasses import replace

import numpy as np
import pytest

from mpd_agl.data import recordings, registry, splits
from mpd_agl.data.load import load_dataset
from mpd_agl.data.types import FrameConfig
from mpd_agl.errors import InputError
from tests.data.samplefiles import events, zip_of

PER_CLASS = 10


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Ten tiny recordings per class; the number of events tells which one it is."""
    spec = replace(registry.get("cifar10dvs"), counts={"all": 10 * PER_CLASS}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "cifar10dvs", spec)
    for k, name in enumerate(spec.classes):
        (tmp_path / "d" / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            stream = events(100 + PER_CLASS * k + i, 128, seed=PER_CLASS * k + i)
            recordings.write_aedat(tmp_path / "d" / name / f"cifar10_{name}_{i}.aedat", stream, transpose=True)
    return tmp_path / "d"


def test_every_event_of_every_recording_is_in_the_frames(recorded, tmp_path):
    config = FrameConfig(num_steps=4, size=128)
    got = {
        split: load_dataset(
            "cifar10dvs", split, data_dir=recorded, cache_dir=tmp_path / "cache", frames=config,
            split_rule="first-90-per-class",
        )
        for split in ("train", "test")
    }  # fmt: skip
    assert got["train"].x.shape == (90, 4, 128, 128, 2)
    assert got["test"].y.tolist() == list(range(10))
    totals = np.asarray(got["test"].x).sum((1, 2, 3, 4)).tolist()
    assert totals == [100 + PER_CLASS * k + 9 for k in range(10)]
    stream = events(109, 128, seed=9)
    frame_HWC = np.zeros((128, 128, 2), int)
    np.add.at(frame_HWC, (stream.y_E, stream.x_E, stream.p_E), 1)
    np.testing.assert_array_equal(np.asarray(got["test"].x[0]).sum(0), frame_HWC)
    assert got["train"].provenance["split_hash"] != got["test"].provenance["split_hash"]
    assert got["train"].provenance["split_rule"] == "first-90-per-class"


def test_the_default_rule_is_known_and_another_seed_is_another_split(recorded, tmp_path):
    where = {"data_dir": recorded, "cache_dir": tmp_path / "cache", "frames": FrameConfig(num_steps=2, size=16)}
    a, b = (load_dataset("cifar10dvs", "test", seed=seed, **where) for seed in (0, 1))
    assert a.provenance["split_rule"] in splits.RULES
    assert a.provenance["split_hash"] != b.provenance["split_hash"]
    assert np.bincount(a.y).tolist() == [1] * 10


def test_frames_are_made_once(recorded, tmp_path, monkeypatch):
    where = {"data_dir": recorded, "cache_dir": tmp_path / "cache", "frames": FrameConfig(num_steps=2, size=16)}
    first = load_dataset("cifar10dvs", "test", **where)
    monkeypatch.setattr(recordings, "decode_aedat", lambda *_, **__: pytest.fail("read again"))
    second = load_dataset("cifar10dvs", "test", **where)
    np.testing.assert_array_equal(first.x, second.x)


def test_a_damaged_recording_is_named(recorded, tmp_path):
    path = recorded / "cat" / "cifar10_cat_3.aedat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"cifar10_cat_3\.aedat is cut short"):
        load_dataset(
            "cifar10dvs", "train", data_dir=recorded, cache_dir=tmp_path / "cache", split_rule="first-90-per-class"
        )


def test_nmnist_from_its_zips(tmp_path, monkeypatch):
    monkeypatch.setitem(
        registry.DATASETS, "nmnist", replace(registry.get("nmnist"), counts={"train": 20, "test": 10}, labels_sha256={})
    )
    for split, top in recordings.NMNIST_FOLDERS.items():
        for digit in range(10):
            (tmp_path / top / str(digit)).mkdir(parents=True)
            for i in range(2 if split == "train" else 1):
                recordings.write_bin(tmp_path / top / str(digit) / f"{i:05}.bin", events(30 + digit, 34, seed=i))
        (tmp_path / "zips").mkdir(exist_ok=True)
        zip_of(tmp_path / top, tmp_path / "zips" / f"{top}.zip")
    got = load_dataset(
        "nmnist",
        "train",
        data_dir=tmp_path / "zips",
        cache_dir=tmp_path / "cache",
        frames=FrameConfig(num_steps=3, size=34),
    )
    assert np.asarray(got.x).sum((1, 2, 3, 4)).tolist() == [30 + d for d in range(10) for _ in range(2)]
    assert got.provenance["partial"] is False
