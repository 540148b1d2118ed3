"""Crop, flip, roll, cutout and normalise by hand-made rules; randomness that depends on (seed, epoch, index) alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.data import counter
from mpd_agl.data.augment import Augmentation, Key, crop, cutout, flip, normalise, roll
from mpd_agl.errors import InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def batch(n: int, shape: tuple[int, ...] = (32, 32, 3)) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def key(n: int, seed: int = 0) -> Key:
    return Key(seed=seed, epoch=0, index_N=np.arange(n))


def test_counter_is_splitmix64():
    # The first outputs of SplitMix64 from state 0, as published with the algorithm.
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(v) for v in counter._mix(state).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_counter_values_do_not_change_between_releases():
    got = counter.uniform(1, 2, np.array([0, 49_999]), stream=3, count=2)
    assert got.tolist() == [[0.5389549134660513, 0.05227948823615802], [0.147860749456861, 0.54911958204004]]
    assert counter.permutation(7, 1, 10, stream=1).tolist() == [0, 2, 3, 4, 1, 6, 7, 5, 8, 9]


def test_counter_is_uniform_and_its_streams_are_independent():
    a = counter.uniform(0, 0, np.arange(100_000), 1, 2)
    assert a.min() >= 0
    assert a.max() < 1
    # Chi-square over 100 bins: mean 99, deviation 14.
    for column in (a[:, 0], a[:, 1]):
        count = np.bincount((column * 100).astype(int), minlength=100)
        assert ((count - 1000.0) ** 2 / 1000).sum() < 99 + 5 * 14
    others = [
        counter.uniform(0, 0, np.arange(100_000), 2, 1)[:, 0],
        counter.uniform(0, 1, np.arange(100_000), 1, 1)[:, 0],
        counter.uniform(1, 0, np.arange(100_000), 1, 1)[:, 0],
        a[:, 1],
        np.roll(a[:, 0], 1),
    ]
    for other in others:
        assert abs(np.corrcoef(a[:, 0], other)[0, 1]) < 5 / 100_000**0.5


def test_permutation_is_one():
    order = counter.permutation(0, 3, 50_000, 1)
    np.testing.assert_array_equal(np.sort(order), np.arange(50_000))
    assert (order == counter.permutation(0, 4, 50_000, 1)).mean() < 1e-3
    assert abs(np.corrcoef(order, np.arange(50_000))[0, 1]) < 5 / 50_000**0.5


def test_crop_is_pad_and_cut():
    x = batch(200)
    out = crop(x, 4, key(200))
    padded = np.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    seen = set()
    for i in range(200):
        places = [
            (dy, dx) for dy in range(9) for dx in range(9) if (padded[i, dy : dy + 32, dx : dx + 32] == out[i]).all()
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 60  # of 81 places; 200 draws miss 6.8 on average


def test_flip_mirrors_half():
    x = batch(2000, (4, 4, 1))
    out = flip(x, key(2000))
    mirrored = (out == x[:, :, ::-1]).all(axis=(1, 2, 3))
    assert ((out == x).all(axis=(1, 2, 3)) ^ mirrored).all()
    assert mirrored.mean() == pytest.approx(0.5, abs=5 * 0.5 / 2000**0.5)


@pytest.mark.parametrize("shape", [(32, 32, 3), (10, 48, 48, 2), (3, 5, 7, 2)])
def test_roll_is_numpys_and_reaches_five_pixels(shape):
    x = batch(60, shape)
    out = roll(x, 5, key(60))
    shifts = counter.integers(key(60).uniform("roll", 2), -5, 5)
    assert (shifts.min(), shifts.max()) == (-5, 5)
    for x_i, out_i, (dy, dx) in zip(x, out, shifts, strict=True):
        np.testing.assert_array_equal(out_i, np.roll(x_i, (dy, dx), axis=(-3, -2)))


def test_cutout_blanks_a_square_that_may_leave_the_image():
    x = np.full((500, 32, 32, 3), 7, np.uint8)
    out = cutout(x, 16, np.array([1, 2, 3], np.uint8), key(500))
    hole = (out == [1, 2, 3]).all(axis=3)
    assert (out[~hole] == 7).all()
    area = hole.sum(axis=(1, 2))
    assert 64 <= area.min() <= 120  # the centre in a corner leaves a quarter
    assert area.max() == 256
    rows, columns = hole.any(axis=2).sum(axis=1), hole.any(axis=1).sum(axis=1)
    np.testing.assert_array_equal(area, rows * columns)


def test_normalise_is_the_formula():
    x = batch(5)
    want = (x / 255.0 - np.array(MEAN)) / np.array(STD)
    got = normalise(x, MEAN, STD)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-6)
    view = x.transpose(1, 0, 2, 3)
    np.testing.assert_allclose(normalise(view, MEAN, STD), want.transpose(1, 0, 2, 3), atol=1e-6)


def test_counts_pass_unchanged_with_a_std_of_one_255th():
    x = batch(3, (4, 8, 8, 2))
    np.testing.assert_array_equal(normalise(x, (0.0, 0.0), (1 / 255, 1 / 255)), x.astype(np.float32))


@pytest.mark.parametrize(
    ("steps", "shape"),
    [("cifar", (32, 32, 3)), ("imagenet", (64, 64, 3)), ("dvs", (4, 12, 12, 2)), (("cutout=8",), (16, 16, 1))],
)
def test_a_sample_depends_on_nothing_but_its_key(steps, shape):
    x, index = batch(64, shape), np.arange(500, 564)
    run = Augmentation(steps, (0.5,) * shape[-1])
    whole = run(x, seed=3, epoch=7, index_N=index)
    halves = [run(x[part], seed=3, epoch=7, index_N=index[part]) for part in (slice(0, 13), slice(13, 64))]
    np.testing.assert_array_equal(np.concatenate(halves), whole)
    mixed = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(run(x[mixed], seed=3, epoch=7, index_N=index[mixed]), whole[mixed])
    assert run(x[:0], seed=3, epoch=7, index_N=index[:0]).shape == (0, *shape)  # a rank may get none of a batch
    for other in ({"seed": 4, "epoch": 7}, {"seed": 3, "epoch": 8}):
        changed = (run(x, index_N=index, **other) != whole).any(axis=tuple(range(1, whole.ndim)))
        assert changed.mean() > 0.5


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["crop", "flip", "roll=2", "autoaugment", "cutout=4"]), max_size=5), st.integers(0, 2**63)
)
def test_any_pipeline_keeps_shape_type_and_its_input(steps, seed):
    x = batch(9, (12, 10, 3))
    before = x.copy()
    out = Augmentation(steps, (0.5, 0.5, 0.5))(x, seed=seed, epoch=0, index_N=np.arange(9))
    assert out.shape == x.shape
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("step", ["crop=0", "roll=x", "flip=1", "crops", "autoaugment=svhn"])
def test_steps_are_checked_when_made(step):
    with pytest.raises(InputError, match="pixels|takes no value|Did you mean 'crop'|unknown AutoAugment policy 'svhn'"):
        Augmentation((step,), (0.5,))
    assert Augmentation("none", (0.5,)).steps == ()
