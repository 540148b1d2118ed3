"""Event sets from files to frames."""

from dataclasses import replace

import numpy as np
import pytest

from mpd_agl.data import mnist5k, recordings, registry, store
from mpd_agl.data.dvs import simulate
from mpd_agl.data.load import frames_set, load_dataset
from mpd_agl.data.types import FrameConfig
from mpd_agl.errors import InputError
from tests.data.samplefiles import NMNIST_FOLDERS, events, same_events, tree, write_aedat, write_bin, zip_of

PER_CLASS = 10
SMALL = FrameConfig(num_steps=2, size=16)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Ten tiny recordings per class; the number of events tells which one it is."""
    spec = replace(registry.get("cifar10dvs"), counts={"all": 10 * PER_CLASS}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "cifar10dvs", spec)
    for k, name in enumerate(spec.classes):
        (tmp_path / "d" / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            stream = events(100 + PER_CLASS * k + i, 128, seed=PER_CLASS * k + i)
            write_aedat(tmp_path / "d" / name / f"cifar10_{name}_{i}.aedat", stream, transpose=True)
    return tmp_path / "d"


def write_nmnist(folder, per_class=(1, 1)):
    for (_, top), count in zip(NMNIST_FOLDERS.items(), per_class, strict=True):
        for digit in range(10):
            (folder / top / str(digit)).mkdir(parents=True)
            for i in range(count):
                write_bin(folder / top / str(digit) / f"{i:05}.bin", events(30 + digit, 34, seed=i))


@pytest.mark.parametrize("packed", ["folders", "zips"])
def test_every_event_of_every_recording_is_in_the_frames(recorded, tmp_path, packed):
    place, config = recorded, FrameConfig(num_steps=4, size=128)
    if packed == "zips":
        (place := tmp_path / "z").mkdir()
        for folder in recorded.iterdir():
            zip_of(folder, place / f"{folder.name}.zip")
    where = {"data_dir": place, "cache_dir": tmp_path / "cache", "frames": config, "split_rule": "first-90-per-class"}
    train, test = (load_dataset("cifar10dvs", split, **where) for split in ("train", "test"))
    assert train.x.shape == (90, 4, 128, 128, 2)
    assert test.y.tolist() == list(range(10))
    assert np.asarray(test.x).sum((1, 2, 3, 4)).tolist() == [100 + PER_CLASS * k + 9 for k in range(10)]
    stream = events(109, 128, seed=9)
    frame_HWC = np.zeros((128, 128, 2), int)
    np.add.at(frame_HWC, (stream.y_E, stream.x_E, stream.p_E), 1)
    np.testing.assert_array_equal(np.asarray(test.x[0]).sum(0), frame_HWC)
    assert train.provenance["split_hash"] != test.provenance["split_hash"]
    assert (train.provenance["split_rule"], train.provenance["split_seed"]) == ("first-90-per-class", 0)
    assert train.provenance["frames"] == {"num_steps": 4, "slicing": "count", "mode": "count", "size": 128}


def test_options_say_how_frames_are_made_and_which_samples_test(recorded, tmp_path, monkeypatch):
    where = {"data_dir": recorded, "cache_dir": tmp_path / "cache", "num_steps": 2, "frame_size": 16}
    a, b = (load_dataset("cifar10dvs", "test", split_seed=seed, **where) for seed in (0, 1))
    assert a.provenance["split_rule"] == "per-class-90-10"
    assert a.provenance["split_hash"] != b.provenance["split_hash"]
    assert np.bincount(a.y).tolist() == [1] * 10
    assert a.x.shape[1:] == (2, 16, 16, 2)
    for mode, top in (("binary", 1), ("count", 9)):
        found = load_dataset("cifar10dvs", "test", **(where | {"num_steps": 1, "frame_size": 4}), frame_mode=mode)
        assert (found.x.max() > 1) == (top > 1)
    monkeypatch.setattr(recordings, "decode_aedat", lambda *_, **__: pytest.fail("read again"))
    np.testing.assert_array_equal(load_dataset("cifar10dvs", "test", **where).x, a.x)


def test_a_missing_zip_or_class_folder_is_named(recorded, tmp_path):
    (tmp_path / "z").mkdir()
    for folder in recorded.iterdir():
        if folder.name != "frog":
            zip_of(folder, tmp_path / "z" / f"{folder.name}.zip")
    (recorded / "horse").rename(recorded / "mare")
    for place, missing in (("z", r"frog\.zip"), ("d", "horse")):
        with pytest.raises(InputError, match=rf"CIFAR10-DVS in .*{place} is incomplete: there is no {missing}"):
            load_dataset("cifar10dvs", "train", data_dir=tmp_path / place, cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == set()


def test_recordings_in_the_wrong_class_folder_are_noticed(recorded, tmp_path, monkeypatch):
    right = {"all": store.labels_digest(np.arange(100) // 10)}
    spec = replace(registry.get("cifar10dvs"), labels_sha256=right)
    monkeypatch.setitem(registry.DATASETS, "cifar10dvs", spec)
    where = {"data_dir": recorded, "cache_dir": tmp_path / "cache", "frames": SMALL}
    assert len(load_dataset("cifar10dvs", "train", **where)) == 90
    (recorded / "cat" / "cifar10_cat_1.aedat").rename(recorded / "dog" / "cifar10_cat_1.aedat")
    with pytest.raises(InputError, match="the sha256 of its all labels is"):
        load_dataset("cifar10dvs", "train", **where)


def test_nmnist_from_its_zips(tmp_path, monkeypatch):
    spec = replace(registry.get("nmnist"), counts={"train": 20, "test": 10}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "nmnist", spec)
    write_nmnist(tmp_path, (2, 1))
    (tmp_path / "zips").mkdir()
    for top in NMNIST_FOLDERS.values():
        zip_of(tmp_path / top, tmp_path / "zips" / f"{top}.zip")
    where = {"data_dir": tmp_path / "zips", "cache_dir": tmp_path / "cache", "frames": FrameConfig(size=34)}
    got = load_dataset("nmnist", "train", **where)
    assert np.asarray(got.x).sum((1, 2, 3, 4)).tolist() == [30 + d for d in range(10) for _ in range(2)]
    assert (got.provenance["partial"], got.provenance["split_rule"]) == (False, "official")


def test_a_zip_of_other_recordings_is_not_kept(tmp_path):
    (tmp_path / "x" / "Train").mkdir(parents=True)
    (tmp_path / "x" / "Train" / "note.txt").write_text("")
    zip_of(tmp_path / "x" / "Train", tmp_path / "Train.zip")
    zip_of(tmp_path / "x", tmp_path / "Test.zip")
    with pytest.raises(InputError, match=r"N-MNIST in .* is incomplete: there is no 0"):
        load_dataset("nmnist", "train", data_dir=tmp_path, cache_dir=tmp_path / "cache", allow_partial=True)
    assert tree(tmp_path / "cache") == {"unpacked"}


def test_mnist5k_dvs_records_each_image_under_its_own_number(tmp_path):
    test, train = mnist5k.recordings("test"), mnist5k.recordings("train")
    assert (len(test), len(train)) == (1000, 4000)
    assert test.items[:3] == [4, 9, 14]
    assert same_events(test(7), simulate(mnist5k.images()[39], seed=0, index=39))
    spec, asked = mnist5k.MNIST5K_DVS, mnist5k.MNIST5K_DVS.load_options({"frame_size": 34}, cache_dir=tmp_path)
    got = frames_set(spec, "test", test.take(np.array([0, 7])), "key", {}, asked)
    assert got.x.shape == (2, 10, 34, 34, 2)
    assert np.asarray(got.x[1]).sum() == len(test(7))
    assert (got.mean, got.std, got.y.tolist()) == ((0.0, 0.0), (1 / 255, 1 / 255), [0, 0])
    assert got.provenance["camera_seed"] == 0
    assert len(list((tmp_path / "frames").glob("*.npy"))) == 1
