import gzip
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mpd_agl.data import cifar, mnist5k, registry, store
from mpd_agl.data.load import load_dataset
from mpd_agl.data.types import LoadOptions
from mpd_agl.errors import InputError
from tests.data.samplefiles import (
    WNIDS,
    cifar_images,
    idx_bytes,
    jpeg_bytes,
    pin,
    planes,
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar10_sheets,
    write_mnist,
    write_tinyimagenet,
)


def read(name, folder, **changes):
    """Find and open a published set; `changes` of its description."""
    spec = replace(registry.get(name), **changes)
    return spec.required_in(folder, LoadOptions()).read()


def read_cifar10(folder):
    return read("cifar10", folder)


def as_pixels(data):
    return store.Pixels(shape=data.x.shape, y_N=data.y, classes=data.classes, parts=lambda: [("x", data.x)], origin="o")


def pixels(split: store.Pixels) -> np.ndarray:
    return np.concatenate([x for _, x in split.parts()])


def write_cifar100(folder, form):
    x = cifar_images(30)
    fine, coarse = np.arange(30) * 3, np.arange(30) % 20
    folder.mkdir()
    for name, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        if form == "python":
            batch = {
                b"data": planes(x[rows]),
                b"fine_labels": fine[rows].tolist(),
                b"coarse_labels": coarse[rows].tolist(),
            }
            (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
            pin(folder / name)
        else:
            labels = np.stack([coarse[rows], fine[rows]], 1).astype(np.uint8)
            (folder / f"{name}.bin").write_bytes(np.concatenate([labels, planes(x[rows])], 1).tobytes())
    return x, fine


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100_reads_fine_labels(tmp_path, form):
    x, fine = write_cifar100(tmp_path / "c", form)
    splits = read("cifar100", tmp_path / "c")
    np.testing.assert_array_equal(splits["train"].y_N, fine[:20])
    np.testing.assert_array_equal(pixels(splits["test"]), x[20:])


@pytest.mark.parametrize("label", [10, -1])
def test_a_label_out_of_range_is_refused_by_name(tmp_path, label):
    write_cifar10_python(tmp_path)
    path = tmp_path / "data_batch_2"
    path.write_bytes(pickle.dumps({**cifar.read_pickle(path), b"labels": [0] * 9 + [label]}, protocol=3))
    with pytest.raises(InputError, match="data_batch_2 is damaged or not the official one"):
        read_cifar10(tmp_path)
    pin(path)
    with pytest.raises(InputError, match=f"data_batch_2 holds the label {label}"):
        read_cifar10(tmp_path)


def test_a_missing_batch_is_named(tmp_path):
    write_cifar10_python(tmp_path)
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(InputError, match="is incomplete: there is no data_batch_4"):
        read_cifar10(tmp_path)


def test_wrong_binary_files_are_refused(tmp_path):
    write_cifar10_binary(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"data_batch_3\.bin has 30,729 bytes, not a multiple of 3,073"):
        read_cifar10(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="has 0 bytes"):
        read_cifar10(tmp_path)
    path.write_bytes(b"\x0b" + content[1:])
    with pytest.raises(InputError, match=r"data_batch_3\.bin holds the label 11"):
        read_cifar10(tmp_path)


def test_wrong_sheets_are_refused(tmp_path):
    write_cifar10_sheets(tmp_path)
    sheet, grey, narrow = tmp_path / "test_batch.png", io.BytesIO(), io.BytesIO()
    Image.new("L", (1024, 10)).save(grey, "PNG")
    Image.new("RGB", (1023, 10)).save(narrow, "PNG")
    for content in (sheet.read_bytes()[:300], jpeg_bytes(1), grey.getvalue(), narrow.getvalue()):
        sheet.write_bytes(content)
        with pytest.raises(InputError, match=r"test_batch\.png is "):
            pixels(read_cifar10(tmp_path)["test"])
    for labels in ("{", '["a"]', "[[1, 2]]", json.dumps([11] * 10)):
        (tmp_path / "test_lables.json").write_text(labels)
        with pytest.raises(InputError, match="no list|one integer per sample|the label 11"):
            read_cifar10(tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read(tmp_path, zipped):
    wrote = write_mnist(tmp_path, zipped)
    splits = read("mnist", tmp_path)
    for split, (x, y) in wrote.items():
        np.testing.assert_array_equal(pixels(splits[split])[..., 0], x)
        np.testing.assert_array_equal(splits[split].y_N, y)
        assert splits[split].shape == (len(y), 28, 28, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes((0, 0, 9, 3)) + bytes(12), "no idx file"),
        (idx_bytes(np.zeros((30, 28), np.uint8)), "no idx file"),
        (idx_bytes(np.zeros((30, 28, 28), np.uint8))[:-1], "has 23,535 bytes, its header says 23,536"),
        (idx_bytes(np.zeros((0, 28, 28), np.uint8)), "cut short or damaged"),
        (idx_bytes(np.zeros((30, 28, 27), np.uint8)), "30 images of 28x27 pixels, expected 30 .* of 28x28"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "its header says"),
    ],
)
def test_wrong_idx_images_are_refused(tmp_path, content, reason):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=rf"train-images-idx3-ubyte\.gz .*{reason}"):
        read("mnist", tmp_path)


def test_wrong_idx_labels_and_damaged_gzip_are_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    damaged = bytearray(gzip.compress(idx_bytes(np.arange(20) % 10)))
    damaged[-5] ^= 1  # the checksum
    for content, reason in (
        (gzip.compress(idx_bytes(np.arange(20) % 11)), r"holds the label 10, outside 0..9"),
        (bytes(damaged), r"t10k-labels-idx1-ubyte\.gz cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=reason):
            read("mnist", tmp_path)


def test_tinyimagenet_orders_by_class_and_number_and_makes_grey_images_rgb(tmp_path):
    write_tinyimagenet(tmp_path)
    splits = read("tinyimagenet", tmp_path, num_classes=3)
    train, test = splits["train"], splits["test"]
    assert train.classes == ("word 1", "word 2", "word 3")
    np.testing.assert_array_equal(train.y_N, np.repeat([0, 1, 2], 12))
    np.testing.assert_array_equal(test.y_N, np.repeat([2, 0, 1], 4))  # the order of the file, labels by sorted id
    x = pixels(train)
    expected = tmp_path / "train" / "n00000001" / "images" / "n00000001_10.JPEG"
    np.testing.assert_array_equal(x[10], np.asarray(Image.open(expected)))
    grey = x[9]
    assert np.array_equal(grey[..., 0], grey[..., 1])
    assert np.array_equal(grey[..., 0], grey[..., 2])
    assert grey.std() > 10
    assert len(test.encoded_sha256()) == 64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg_bytes(1, size=(63, 64)), "RGB image of 63x64 pixels"),
        (jpeg_bytes(1, kind="PNG"), "no readable JPEG file"),
        (jpeg_bytes(1)[:200], "no readable JPEG file"),
    ],
)
def test_a_wrong_image_is_refused_by_name(tmp_path, content, reason):
    write_tinyimagenet(tmp_path)
    (tmp_path / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG").write_bytes(content)
    with pytest.raises(InputError, match=rf"n00000003_3\.JPEG is .*{reason}"):
        pixels(read("tinyimagenet", tmp_path, num_classes=3)["train"])


def test_missing_parts_of_tinyimagenet_are_named(tmp_path):
    write_tinyimagenet(tmp_path)
    with pytest.raises(InputError, match="lists 3 classes, expected 200"):
        read("tinyimagenet", tmp_path)
    (tmp_path / "val" / "images" / "val_5.JPEG").unlink()
    with pytest.raises(InputError, match=r"val_5\.JPEG is missing"):
        read("tinyimagenet", tmp_path, num_classes=3)
    annotations = tmp_path / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn99999999\t0\n")
    with pytest.raises(InputError, match="no image of a known class"):
        read("tinyimagenet", tmp_path, num_classes=3)
    for image in (tmp_path / "train" / WNIDS[1] / "images").iterdir():
        image.unlink()
    with pytest.raises(InputError, match=r"n00000001.images is missing or holds no image of class n00000001"):
        read("tinyimagenet", tmp_path, num_classes=3)


MNIST5K_SHA256 = (
    "a4de8aef91b3e0f55bd9bdd12b0a57b0cf59840b8a6862322247ec6651db0b2e",
    "fb8e189a3c37b5f9dc83ce41dd4c5f7a66f945fa0ee69010abf460b9a3e5d2e4",
)


def test_mnist5k_is_5000_real_digits_in_a_fixed_split():
    sets = {split: load_dataset("mnist5k", split) for split in ("train", "test")}
    train, test = (store.digest(as_pixels(data)) for data in sets.values())
    assert (train.count, test.count) == (4000, 1000)
    assert train.per_class == (400,) * 10
    assert test.per_class == (100,) * 10
    assert (train.sha256, test.sha256) == MNIST5K_SHA256
    assert train.mean[0] == pytest.approx(registry.get("mnist5k").mean[0], abs=5e-5)
    assert train.std[0] == pytest.approx(registry.get("mnist5k").std[0], abs=5e-5)
    assert set(mnist5k.split_index("train")) | set(mnist5k.split_index("test")) == set(range(5000))
    assert mnist5k.FILE.stat().st_size < 1 << 20


def test_a_damaged_mnist5k_is_refused(tmp_path, monkeypatch):
    content = bytearray(mnist5k.FILE.read_bytes())
    content[400_000] ^= 1
    for bad in (bytes(content), content[:1000], b""):
        (tmp_path / "m.png").write_bytes(bad)
        monkeypatch.setattr(mnist5k, "FILE", tmp_path / "m.png")
        with pytest.raises(InputError, match=r"m\.png is damaged or missing"):
            mnist5k.images()
