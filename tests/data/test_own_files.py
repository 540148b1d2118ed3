"""A user's own files: images in class folders, arrays in an .npz file, event recordings in class folders."""

import json
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from mpd_agl.cli import main
from mpd_agl.data import (
    DataSet,
    FrameConfig,
    as_array_set,
    images,
    load_dataset,
    own_files,
    register_dataset,
    registry,
    store,
)
from mpd_agl.data.events import to_frames
from mpd_agl.data.options import ImageOptions
from mpd_agl.data.splits import split_indices
from mpd_agl.errors import InputError
from tests.data.samplefiles import events, tree, write_aedat, write_bin

RNG = np.random.default_rng(0)


def picture(height, width, mode="RGB", seed=0):
    rng = np.random.default_rng(seed)
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), mode if mode == "RGBA" else None)


def write_images(folder, per_class=3, size=(20, 16), splits=("train", "test"), mode="RGB", suffix=".png"):
    """Images whose mean tells class and number apart; returns the arrays by relative name."""
    out = {}
    for split in splits:
        for k, name in enumerate(("cat", "dog")):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(per_class):
                image = picture(*size, mode, seed=100 * k + i + 1000 * (split == "test"))
                image.save(place / f"{i}{suffix}")
                out[f"{split}/{name}/{i}"] = np.asarray(image)
    return out


def load(folder, split="train", cache=None, name="folder", **options):
    return load_dataset(name, split, data_dir=folder, cache_dir=cache or folder.parent / "cache", **options)


def test_images_are_read_by_class_and_number(tmp_path):
    wrote = write_images(tmp_path / "d", per_class=11, size=(24, 24))
    (tmp_path / "d" / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "d" / "train" / "cat" / ".hidden.png").write_text("not an image")
    train, test = load(tmp_path / "d"), load(tmp_path / "d", "test")
    assert train.x.shape == (22, 24, 24, 3)  # all are squares of one size: kept
    assert isinstance(train.x, np.memmap)
    assert train.classes == ("cat", "dog")
    assert train.y.tolist() == [0] * 11 + [1] * 11
    expected = np.stack([wrote[f"train/{name}/{i}"] for name in ("cat", "dog") for i in range(11)])  # 2 before 10
    np.testing.assert_array_equal(train.x, expected)
    np.testing.assert_array_equal(test.x[12], wrote["test/dog/1"])
    np.testing.assert_allclose(train.mean, (expected / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(train.std, (expected / 255).std((0, 1, 2)), rtol=1e-9)
    assert (test.mean, test.std) == (train.mean, train.std)  # measured on the training split
    record = test.provenance
    assert record["source"] == f"data-dir {tmp_path / 'd'}"
    assert (record["image_size"], record["colour"], record["ignored_files"]) == (24, "rgb", 1)
    assert record["split_rule"] == "official"
    assert (
        record["sha256"] == store.digest(store.as_pixels(store.open_split(test.x.filename.parents[1], "test"))).sha256
    )


def test_images_of_any_shape_become_squares(tmp_path):
    (tmp_path / "d" / "a").mkdir(parents=True)
    (tmp_path / "d" / "b").mkdir()
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, 18:62] = (200, 100, 50)  # the middle square, and two pixels that the resize mixes in
    Image.fromarray(wide).save(tmp_path / "d" / "a" / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "d" / "a" / "tall.bmp")
    for i in range(10):
        picture(30, 50, seed=i).save(tmp_path / "d" / "b" / f"{i}.jpg")
    found = load(tmp_path / "d", split_rule="first-90-per-class")
    assert found.x.shape[1:] == (32, 32, 3)
    assert found.y.tolist() == [0, 0] + [1] * 9
    np.testing.assert_array_equal(found.x[0], np.broadcast_to((200, 100, 50), (32, 32, 3)))
    np.testing.assert_array_equal(found.x[1], found.x[0])
    image = picture(64, 128)
    shorter_side = image.resize((64, 32), Image.Resampling.BILINEAR)
    middle = shorter_side.crop((16, 0, 48, 32))
    np.testing.assert_array_equal(np.asarray(images.square(image, 32)), np.asarray(middle))
    small = load(tmp_path / "d", split_rule="first-90-per-class", image_size=10, colour="grey")
    assert small.x.shape[1:] == (10, 10, 1)
    assert set(np.unique(small.x[0])) == {round(200 * 0.299 + 100 * 0.587 + 50 * 0.114)}


def test_grey_transparent_deep_and_turned_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "d" / "train" / name).mkdir(parents=True)
        (tmp_path / "d" / "test" / name).mkdir(parents=True)
        picture(8, 8, "L").save(tmp_path / "d" / "test" / name / "0.png")
    place = tmp_path / "d" / "train" / "a"
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[2, 3, 3] = 255  # one opaque black pixel on nothing
    Image.fromarray(clear).convert("LA").save(place / "0.png")
    deep = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(deep).save(place / "1.png")
    bits = Image.fromarray(np.eye(8, dtype=np.uint8) * 255).convert("1")
    bits.save(place / "2.png")
    turned = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned.save(place / "3.png", exif=exif)
    picture(8, 8, "L", seed=3).save(tmp_path / "d" / "train" / "b" / "0.tif")
    found = load(tmp_path / "d")
    assert found.x.shape == (5, 8, 8, 1)
    white = np.full((8, 8), 255)
    white[2, 3] = 0
    np.testing.assert_array_equal(found.x[0, ..., 0], white)
    np.testing.assert_array_equal(found.x[1, ..., 0], deep >> 8)
    np.testing.assert_array_equal(found.x[2, ..., 0], np.eye(8) * 255)
    np.testing.assert_array_equal(found.x[3, ..., 0], np.arange(64).reshape(8, 8)[::-1, ::-1])
    rgb = load(tmp_path / "d", colour="rgb")
    np.testing.assert_array_equal(rgb.x, np.repeat(found.x, 3, -1))


def test_class_folders_alone_are_split_and_the_split_recorded(tmp_path):
    write_images(tmp_path / "d", per_class=20, size=(8, 8), splits=(".",))
    train, test = load(tmp_path / "d"), load(tmp_path / "d", "test")
    assert (np.bincount(train.y).tolist(), np.bincount(test.y).tolist()) == ([18, 18], [2, 2])
    y = np.repeat([0, 1], 20)
    for found in (train, test):
        _, digest = split_indices(y, "per-class-90-10", split=found.split, seed=0)
        record = found.provenance
        assert (record["split_rule"], record["split_seed"]) == ("per-class-90-10", 0)
        assert record["split_hash"] == digest
    both = {image.tobytes() for image in train.x} | {image.tobytes() for image in test.x}
    assert len(both) == 40
    other = load(tmp_path / "d", "test", split_seed=1)
    assert other.provenance["split_hash"] != test.provenance["split_hash"]


def test_a_folder_is_converted_once_and_again_when_it_changes(tmp_path, monkeypatch):
    write_images(tmp_path / "d", size=(8, 8))
    first = load(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(own_files.images, "read_square", lambda *_, **__: pytest.fail("read again"))
        patch.setattr(own_files.images, "opened", lambda *_, **__: pytest.fail("read again"))
        second = load(tmp_path / "d")
    np.testing.assert_array_equal(first.x, second.x)
    assert first.provenance == second.provenance
    path = tmp_path / "d" / "train" / "cat" / "1.png"
    picture(8, 8, seed=77).save(path)
    os.utime(path, ns=(1, 1))
    changed = load(tmp_path / "d")
    assert (changed.x != first.x).any(axis=(1, 2, 3)).tolist() == [False, True, False, False, False, False]
    (tmp_path / "d" / "train" / "dog" / "9.png").write_bytes(path.read_bytes())
    assert len(load(tmp_path / "d")) == 7


def remove(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda d: remove(d / "test"), r"has a folder 'train' and no folder 'test'"),
        (lambda d: remove(d / "train" / "dog"), r"train holds 1 class folder\(s\), and a classifier needs two"),
        (lambda d: (remove(d / "train" / "dog"), (d / "train" / "dog").mkdir()), r"dog holds no file of a known kind"),
        (lambda d: (d / "test" / "cow").mkdir(), "test has the class folder 'cow', and .*train has not"),
        (lambda d: (d / "train" / "cat" / "1.png").write_bytes(b"x" * 50), r"cat.1\.png is no readable image"),
        (lambda d: os.truncate(d / "train" / "cat" / "0.png", 300), r"cat.0\.png is no readable image"),
    ],
)
def test_folders_that_cannot_be_read_are_one_sentence(tmp_path, spoil, reason):
    write_images(tmp_path / "d")
    spoil(tmp_path / "d")
    with pytest.raises(InputError, match=reason) as caught:
        load(tmp_path / "d")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path / "cache") <= {"converted"}


def test_an_image_that_claims_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    write_images(tmp_path / "d")
    monkeypatch.setattr(images, "MOST_PIXELS", 319)
    with pytest.raises(InputError, match=r"0\.png is an image of 16x20 pixels, more than is decoded here"):
        load(tmp_path / "d")


def write_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8),
        "y_train": np.arange(9) % 3,
        "x_test": rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8),
        "y_test": np.array([2, 1, 0, 0]),
        **changes,
    }
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return arrays


def test_arrays_are_read_from_an_npz(tmp_path):
    wrote = write_npz(tmp_path / "a.npz")
    train, test = (load(tmp_path / "a.npz", split, name="npz") for split in ("train", "test"))
    np.testing.assert_array_equal(train.x, wrote["x_train"])
    np.testing.assert_array_equal(test.x, wrote["x_test"])
    np.testing.assert_array_equal(test.y, wrote["y_test"])
    assert train.classes == ("0", "1", "2")
    np.testing.assert_allclose(test.mean, (wrote["x_train"] / 255).mean((0, 1, 2)), rtol=1e-12)
    assert test.provenance["source"] == f"data-dir {tmp_path / 'a.npz'}"
    write_npz(tmp_path / "b.npz", x_train=wrote["x_train"].transpose(0, 3, 1, 2) / 255, classes=np.array(list("abc")))
    other = load(tmp_path / "b.npz", name="npz")
    np.testing.assert_array_equal(other.x, wrote["x_train"])
    assert other.provenance["sha256"] == train.provenance["sha256"]
    assert other.classes == ("a", "b", "c")


def test_frames_are_read_from_an_npz(tmp_path):
    frames = RNG.integers(0, 9, (9, 5, 8, 8, 2), dtype=np.uint8)
    write_npz(tmp_path / "a.npz", x_train=frames, x_test=frames[:4].transpose(0, 1, 4, 2, 3))
    found = load(tmp_path / "a.npz", "test", name="npz")
    np.testing.assert_array_equal(found.x, frames[:4])
    assert (found.mean, found.std) == ((0.0, 0.0), (1 / 255, 1 / 255))


X9 = np.zeros((9, 8, 8, 3), np.float32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"y_test": None}, r"has no array 'y_test' but x_test, x_train, y_train\. Save x_train, y_train"),
        ({"x_train": np.zeros((9, 8, 9, 3), np.uint8)}, r"x_train of shape \(9, 8, 9, 3\) and x_test"),
        ({"x_train": X9 - 1}, r"x_train in .* holds float32 values from -1 to -1"),
        ({"x_train": X9 * np.nan}, "x_train in .* holds NaN"),
        ({"y_train": np.arange(8) % 3}, r"y_train in .* 9 in all, got int64 of shape \(8,\)"),
        ({"y_test": np.array([0, 1, 2, 3])}, r"test in .* holds the label 3, outside 0\.\.2"),
    ],
)
def test_arrays_that_cannot_be_used_are_one_sentence(tmp_path, changes, reason):
    write_npz(tmp_path / "a.npz", **changes)
    with pytest.raises(InputError, match=reason) as caught:
        load(tmp_path / "a.npz", name="npz")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path / "cache") <= {"converted"}


def test_an_npz_never_runs_code(tmp_path, monkeypatch):
    class Call:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    write_npz(tmp_path / "a.npz", x_train=np.array([Call()] * 9, object))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Call()))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(InputError, match=rf"{name} is no readable file of NumPy arrays"):
            load(tmp_path / name, name="npz")
    for content in (b"", b"PK", (tmp_path / "a.npz").read_bytes()[:200]):
        (tmp_path / "c.npz").write_bytes(content)
        with pytest.raises(InputError, match="c.npz is no readable file"):
            load(tmp_path / "c.npz", name="npz")
    with pytest.raises(InputError, match=r"there is no .*gone"):
        load(tmp_path / "gone.npz", name="npz")
    assert not (tmp_path / "evil").exists()


def structured(stream):
    out = np.empty(len(stream), [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
    for name in "txyp":
        out[name] = getattr(stream, f"{name}_E")
    return out


def write_events(path, stream, kind):
    if kind == "npz":
        np.savez(path.with_suffix(".npz"), **{n: getattr(stream, f"{n}_E") for n in "txyp"})
    elif kind == "npz with signs":
        signs = stream.p_E.astype(np.int8) * 2 - 1
        np.savez(path.with_suffix(".npz"), t=stream.t_E, x=stream.x_E, y=stream.y_E, p=signs, width=34, height=34)
    elif kind == "npz structured":
        np.savez(path.with_suffix(".npz"), events=structured(stream))
    elif kind == "npy":
        np.save(path.with_suffix(".npy"), structured(stream))
    elif kind == "bin":
        write_bin(path.with_suffix(".bin"), stream)
    else:
        write_aedat(path.with_suffix(".aedat"), stream)


def write_event_folder(folder, kind, side=34, splits=("train", "test"), count=2):
    out = {}
    for split in splits:
        for k, name in enumerate(("wave", "clap")):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                stream = events(200 + 10 * k + i, side, seed=100 * k + i + 1000 * (split == "test"))
                write_events(folder / split / name / str(i), stream, kind)
                out[split, name, i] = stream
    return out


@pytest.mark.parametrize("kind", ["npz", "npz with signs", "npz structured", "npy", "bin", "aedat"])
def test_recordings_become_frames(tmp_path, kind):
    side = 128 if kind == "aedat" else 34
    wrote = write_event_folder(tmp_path / "d", kind, side)
    config = FrameConfig(num_steps=3, size=17)
    found = load(tmp_path / "d", name="event-folder", frames=config)
    assert found.classes == ("clap", "wave")
    order = [("train", name, i) for name in ("clap", "wave") for i in range(2)]
    np.testing.assert_array_equal(found.x, np.stack([to_frames(wrote[k], config) for k in order]))
    assert (found.mean, found.std) == ((0.0, 0.0), (1 / 255, 1 / 255))
    assert found.provenance["frames"] == {"num_steps": 3, "slicing": "count", "mode": "count", "size": 17}
    assert found.provenance.get("sensor") == ([34, 34] if "np" in kind else None)
    assert len(found.provenance["frames_sha256"]) == 64


def test_all_recordings_share_the_largest_sensor(tmp_path):
    """A recording whose events keep to a corner is not blown up to fill the frame."""
    for name in ("a", "b"):
        (tmp_path / "d" / name).mkdir(parents=True)
        for i in range(10):
            corner = 10 if i else 40
            stream = events(50, corner, seed=i)
            np.save(tmp_path / "d" / name / f"{i}.npy", structured(stream))
    found = load(tmp_path / "d", name="event-folder", frames=FrameConfig(num_steps=1, size=40))
    side = found.provenance["sensor"][0]
    assert 36 <= side <= 40
    few = np.asarray(found.x).sum((1, 4))
    assert all(few[i, : 10 * 40 // side + 1, : 10 * 40 // side + 1].sum() == 50 for i in range(1, len(found) // 2))
    kept = next((tmp_path / "cache" / "frames").glob("sensor-*.json"))
    assert json.loads(kept.read_text()) == found.provenance["sensor"]
    assert own_files._sensor([], kept) == found.provenance["sensor"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": np.zeros((3, 4))}, "holds a, and a recording is"),
        ({"t": [1, 2], "x": [0, 1], "y": [0, 70000], "p": [0, 1]}, "y in .* lies from 0 to 70000"),
        ({"t": [2, 1], "x": [0, 1], "y": [0, 1], "p": [0, 1]}, "out of order: event 1 is at 1 us"),
        ({"t": [1, 2], "x": [0], "y": [0, 1], "p": [0, 1]}, "differ in length"),
    ],
)
def test_damaged_recordings_are_one_sentence_that_names_the_file(tmp_path, content, reason):
    write_event_folder(tmp_path / "d", "npz")
    path = tmp_path / "d" / "train" / "wave" / "1.npz"
    np.savez(path, **content)
    with pytest.raises(InputError, match=reason) as caught:
        load(tmp_path / "d", name="event-folder")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mixed_recordings_are_refused(tmp_path):
    write_event_folder(tmp_path / "d", "bin")
    write_events(tmp_path / "d" / "train" / "wave" / "7", events(5, 34), "npy")
    with pytest.raises(InputError, match=r"mixes recordings of the kinds \.bin, \.npy"):
        load(tmp_path / "d", name="event-folder")


def test_a_registered_set_is_found_by_name_and_an_object_needs_no_name(monkeypatch):
    monkeypatch.setattr(registry, "DATASETS", dict(registry.DATASETS))
    asked = []

    def read(split, options):
        asked.append((split, str(options.data_dir), options.table.image_size))
        x = np.random.default_rng(len(split)).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
        return as_array_set((x, np.arange(6) % 2), name="mine", split=split, classes=("a", "b"))

    mine = DataSet(name="mine", classes=("a", "b"), shape=(8, 8, 1), read=read, options=ImageOptions)
    assert load_dataset(mine, "test").classes == ("a", "b")
    with pytest.raises(InputError, match="unknown data set 'mine'"):
        load_dataset("mine", "train")
    register_dataset(mine)
    register_dataset(mine)  # a plugin that is loaded twice
    assert load_dataset("mine", "train", data_dir="somewhere", image_size=8).x.shape == (6, 8, 8, 1)
    assert asked == [("test", "None", 0), ("train", "somewhere", 8)]
    assert (mine.num_classes, mine.title) == (2, "mine")
    for entry, reason in (
        ({"name": "mine"}, "there is a data set 'mine' already"),
        ({"name": "a/b"}, "letters, digits"),
        ({"name": "other", "kind": "sounds"}, "unknown kind of data 'sounds'"),
    ):
        with pytest.raises(InputError, match=reason):
            register_dataset(DataSet(read=read, **entry))


def test_the_command_verifies_and_shows_files_of_ones_own(tmp_path, capsys):
    write_images(tmp_path / "d", per_class=3, size=(20, 16))
    write_event_folder(tmp_path / "e", "npy")
    for name, place in (("folder", "d"), ("event-folder", "e")):
        where = ["--data-dir", str(tmp_path / place), "--cache-dir", str(tmp_path / "cache")]
        assert main(["data", "verify", name, *where]) == 0
        assert main(["data", "show", name, *where, "-o", str(tmp_path / f"{name}.png")]) == 0
        with Image.open(tmp_path / f"{name}.png") as sheet:
            assert sheet.width > 100
    where = ["--data-dir", str(tmp_path / "d"), "--cache-dir", str(tmp_path / "cache")]
    capsys.readouterr()
    assert main(["data", "verify", "folder", *where, "--image-size", "10", "--colour", "grey"]) == 0
    wanted = load(tmp_path / "d", image_size=10, colour="grey")
    assert f"mean ({(wanted.x / 255).mean():.4f})" in capsys.readouterr().out
