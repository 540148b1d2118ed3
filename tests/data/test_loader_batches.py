"""The loader: layout, order, stopping and continuing anywhere, ranks, errors of the worker, and nothing left behind."""

import gc
import multiprocessing
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.data.loader import Loader
from mpd_agl.data.share import part_sizes
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError


def noise(shape: tuple[int, ...], top: int, classes: int, mean: float, std: float) -> ArraySet:
    x = np.random.default_rng(0).integers(0, top, shape, dtype=np.uint8)
    names, C = tuple(map(str, range(classes))), shape[-1]
    y = np.arange(len(x), dtype=np.int64) % classes
    return ArraySet(name="noise", split="train", x=x, y=y, classes=names, mean=(mean,) * C, std=(std,) * C)


def images(n: int = 103) -> ArraySet:
    return noise((n, 32, 32, 3), 256, 10, 0.5, 0.25)


def frames() -> ArraySet:
    return noise((23, 4, 12, 12, 2), 9, 23, 0.0, 1 / 255)


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("mpd-agl-loader")]


def everything(batches) -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = zip(*batches, strict=True)
    return torch.cat(xs, dim=xs[0].ndim - 4), torch.cat(ys)


def test_evaluation_gives_the_set_in_order():
    data = images()
    loader = Loader(data, batch_size=20, seed=0, train=False, augment="cifar")
    assert len(loader) == 6
    x, y = everything(loader.epoch(0))
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert y.tolist() == data.y.tolist()
    want = (data.x.astype(np.float64) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(x.permute(0, 2, 3, 1).numpy(), want, atol=1e-6)


def test_images_are_channels_last_in_memory():
    x, _ = next(Loader(images(), batch_size=20, seed=0, train=True, augment="cifar").epoch(0))
    assert x.shape == (20, 3, 32, 32)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_frames_are_time_major_and_channels_last_in_memory():
    data = frames()
    x, y = next(Loader(data, batch_size=7, seed=0, train=False).epoch(0))
    assert x.shape == (4, 7, 2, 12, 12)
    assert x.permute(0, 1, 3, 4, 2).is_contiguous()
    assert x.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(x.permute(1, 0, 3, 4, 2).numpy(), data.x[:7].astype(np.float32))
    assert y.tolist() == list(range(7))


def test_every_sample_once_per_epoch_in_another_order():
    data = frames()
    loader = Loader(data, batch_size=5, seed=0, train=True)
    orders = [everything(loader.epoch(e))[1].tolist() for e in range(3)]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert everything(loader.epoch(1))[1].tolist() == orders[1]
    assert everything(Loader(data, batch_size=5, seed=1, train=True).epoch(1))[1].tolist() != orders[1]


@pytest.mark.parametrize(
    ("data", "augment"), [(images(), ("crop", "flip", "autoaugment", "cutout")), (frames(), "dvs")]
)
def test_worker_batch_size_and_restart_do_not_matter(data, augment):
    def all_of(batch_size: int, num_workers: int, stop: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        loader = Loader(data, batch_size=batch_size, seed=3, train=True, augment=augment, num_workers=num_workers)
        if stop is None:
            return everything(loader.epoch(4))
        with loader.epoch(4) as first:
            head = [next(first) for _ in range(stop)]
        again = Loader(data, batch_size=batch_size, seed=3, train=True, augment=augment, num_workers=num_workers)
        return everything([*head, *again.epoch(4, start_step=stop)])

    x, y = all_of(10, 1)
    for other_x, other_y in (
        all_of(10, 0),
        all_of(7, 1),
        all_of(10, 1, stop=2),
        all_of(4, 0, stop=3),
        all_of(10, 4, stop=1),
    ):
        assert torch.equal(other_y, y)
        assert torch.equal(other_x, x)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 25), st.integers(0, 30), st.integers(0, 4), st.booleans())
def test_any_stop_continues(batch_size, stop, num_workers, drop_last):
    if drop_last and batch_size > 23:
        return
    loader = Loader(frames(), batch_size=batch_size, seed=0, train=True, num_workers=num_workers, drop_last=drop_last)
    whole = [y.tolist() for _, y in loader.epoch(0)]
    assert len(whole) == len(loader)
    stop = min(stop, len(loader))
    rest = loader.epoch(0, start_step=stop)
    assert len(rest) == len(loader) - stop
    assert [y.tolist() for _, y in rest] == whole[stop:]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_order_and_augmentation_do_not_know_ranks_or_workers(world, num_workers, train):
    """103 samples in batches of 20: the last has 3, and of 4 ranks one gets none. Ranks join in mid-epoch."""
    data, parts = images(), 2
    alone = Loader(data, batch_size=20, seed=5, train=train, augment="cifar", num_workers=0, parts=parts)
    how = {"batch_size": 20, "seed": 5, "train": train, "augment": "cifar", "parts": parts, "world_size": world}
    ranks = [Loader(data, num_workers=num_workers, rank=rank, **how).epoch(3, start_step=2) for rank in range(world)]
    for (x, y), *shares in zip(alone.epoch(3, start_step=2), *ranks, strict=True):
        sizes = [part_sizes(len(y), parts, rank, world) for rank in range(world)]
        pieces = [
            [share[0].split(size)[k] for share, size in zip(shares, sizes, strict=True)] for k in range(len(sizes[0]))
        ]
        assert torch.equal(torch.cat([piece for part in pieces for piece in part]), x)
        assert sum(len(share[1]) for share in shares) == len(y)


def test_no_thread_is_left_behind():
    loader = Loader(images(), batch_size=5, seed=0, train=True, augment="cifar")
    list(loader.epoch(0))
    assert not workers()
    with loader.epoch(1) as batches:
        next(batches)
    assert not workers()
    assert list(batches) == []  # closed is closed
    for _ in loader.epoch(2):
        break
    gc.collect()
    deadline = time.monotonic() + 5
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not workers()


def test_an_error_of_the_worker_arrives_where_its_batch_would():
    data = images()
    loader = Loader(data, batch_size=10, seed=0, train=False)
    make = loader.make

    def fails(index, epoch):
        if 35 in index:
            raise OSError("the disk went away")
        return make(index, epoch)

    loader.make = fails
    batches = loader.epoch(0)
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match="the disk went away"):
        next(batches)
    assert not workers()


def test_a_memory_mapped_set_is_not_copied(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, images(2000).x)
    mapped = np.load(path, mmap_mode="r")
    loader = Loader(replace(images(2000), x=mapped), batch_size=50, seed=0, train=True, augment="cifar")
    assert loader.dataset.x is mapped
    before = set(threading.enumerate())
    with loader.epoch(0) as batches:
        next(batches)
        assert set(threading.enumerate()) - before == set(workers())  # a thread of this process: it sees the same pages
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_workers": 17}, "0 to 16 workers, got 17"),
        ({"batch_size": 2, "world_size": 3}, "cannot be shared by 3 processes"),
        ({"batch_size": 200, "drop_last": True}, "103 samples, fewer than a batch of 200"),
        ({"augment": ("crop=32",)}, "cannot crop 32x32 images with a padding of 32"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Loader(images(), **{"batch_size": 20, "seed": 0, "train": True, **change})


def test_sets_and_steps_that_do_not_fit_are_refused():
    data = images()
    with pytest.raises(InputError, match="0 samples, fewer than a batch of 5"):
        Loader(replace(data, x=data.x[:0], y=data.y[:0]), batch_size=5, seed=0, train=True)
    with pytest.raises(InputError, match="leave it out for event frames"):
        Loader(frames(), batch_size=5, seed=0, train=True, augment="cifar")
    with pytest.raises(InputError, match="start_step must be from 0 to 21, got 22"):
        Loader(data, batch_size=5, seed=0, train=True).epoch(0, start_step=22)
