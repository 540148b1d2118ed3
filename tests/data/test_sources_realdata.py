"""Authentic files: set MPD_AGL_REALDATA to a folder that holds them, unpacked. Skipped where absent."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import recordings, registry
from mpd_agl.data.event_sets import list_recordings
from mpd_agl.data.verify import verify
from mpd_agl.errors import InputError

pytestmark = pytest.mark.realdata
ROOT = Path(os.environ.get("MPD_AGL_REALDATA", "/nonexistent"))


def need(name: str) -> Path:
    if not (ROOT / name).is_dir():
        pytest.skip(f"no {name} in $MPD_AGL_REALDATA")
    return ROOT / name


@pytest.mark.parametrize(
    ("name", "folder", "per_class", "means"),
    [
        ("cifar10", "cifar-10-batches-py", (5000, 1000), (0.4914, 0.4822, 0.4465)),
        ("cifar100", "cifar-100-python", (500, 100), (0.5071, 0.4865, 0.4409)),
    ],
)
def test_cifar(name, folder, per_class, means, tmp_path):
    report = verify(name, data_dir=need(folder), cache_dir=tmp_path)
    train, test = report.splits["train"], report.splits["test"]
    assert (train.count, test.count) == (50_000, 10_000)
    assert set(train.per_class) == {per_class[0]}
    assert set(test.per_class) == {per_class[1]}
    assert tuple(round(m, 4) for m in train.means["mean"]) == means
    assert train.sha256 == registry.get(name).sha256["train"]
    assert train.checked == test.checked == "the official pixels"


def test_a_flipped_bit_in_an_authentic_file_is_found(tmp_path):
    shutil.copytree(need("cifar-10-batches-py"), tmp_path / "c")
    path = tmp_path / "c" / "data_batch_4"
    with path.open("r+b") as file:
        file.seek(20_000_000)
        byte = file.read(1)
        file.seek(20_000_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(InputError, match=r"data_batch_4 is damaged or not the official one"):
        verify("cifar10", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")


def test_nmnist_recordings_are_genuine():
    found = list_recordings(
        need("N-MNIST-subset") / "Train", classes=tuple("0123456789"), suffix=".bin", read_one=recordings.read_bin
    )
    events = [found(i) for i in range(0, len(found), 10)]
    assert 3500 < np.mean([len(e) for e in events]) < 4700
    assert 0.45 < np.mean([e.p_E.mean() for e in events]) < 0.55
    assert all(290_000 < e.t_E[-1] < 340_000 for e in events)
