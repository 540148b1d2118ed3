"""Arrays, tensors and torch data sets become an ArraySet, or are refused in one sentence."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from mpd_agl.data import ArraySet, as_array_set
from mpd_agl.data.loader import Loader
from mpd_agl.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (12, 8, 9, 3), dtype=np.uint8)
Y = np.arange(12) % 3


def convert(x, y=Y, **options):
    return as_array_set((x, y), name="mine", split="train", **options)


def same(found: ArraySet) -> None:
    np.testing.assert_array_equal(found.x, X)
    assert found.x.dtype == np.uint8
    np.testing.assert_array_equal(found.y, Y)
    assert found.y.dtype == np.int64
    assert found.classes == ("0", "1", "2")
    np.testing.assert_allclose(found.mean, (X / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.std, (X / 255).std((0, 1, 2)), rtol=1e-9)
    assert found.provenance["sha256"] == hashlib.sha256(X.tobytes()).hexdigest()


class Pairs(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


WRONG_LABELS = ([0.0, 0.7], [0, 2], [-1, 1], [0], [[0], [1]], ["0", "1"], [True, False])
CHW = torch.from_numpy(X).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X, Y.tolist()),
        (X.astype(np.int64), Y.astype(np.uint8)),
        (X / 255, Y),
        ((X / 255).astype(np.float32), Y),
        (X.transpose(0, 3, 1, 2), Y),
        (CHW, torch.from_numpy(Y)),
        (CHW.float() / 255, torch.from_numpy(Y)),
        (torch.from_numpy(X / 255).requires_grad_(), torch.from_numpy(Y)),
        torch.utils.data.TensorDataset(CHW, torch.from_numpy(Y)),
        Pairs([(CHW[i].float() / 255, int(Y[i])) for i in range(12)]),
        Pairs([(CHW[i], torch.tensor(int(Y[i]))) for i in range(12)]),
        Pairs([(Image.fromarray(X[i]), np.int64(Y[i])) for i in range(12)]),
        [(X[i], int(Y[i])) for i in range(12)],
    ],
    ids=lambda d: type(d).__name__,
)
def test_every_form_gives_the_same_set(data):
    same(as_array_set(data, name="mine", split="train"))


def test_grey_images_and_frames():
    grey = convert(X[..., 0])
    np.testing.assert_array_equal(grey.x[..., 0], X[..., 0])
    counts = RNG.integers(0, 5, (12, 4, 8, 8, 2), dtype=np.uint8)
    for x in (counts, counts.transpose(0, 1, 4, 2, 3)):
        found = convert(x)
        np.testing.assert_array_equal(found.x, counts)
        assert (found.mean, found.std) == ((0.0, 0.0), (1 / 255, 1 / 255))
    batch, _ = Loader(found, batch_size=12, seed=0, train=False).make(np.arange(12), 0)
    np.testing.assert_array_equal(batch.permute(1, 0, 3, 4, 2).numpy(), counts)  # plain counts
    film = convert(RNG.integers(0, 256, (12, 4, 8, 8, 3), dtype=np.uint8))
    np.testing.assert_allclose(film.mean, (film.x / 255).mean((0, 1, 2, 3)), rtol=1e-12)


def test_a_constant_channel_still_normalises():
    found = convert(np.full((12, 8, 8, 1), 7, np.uint8))
    assert found.std == (1 / 255,)


def test_the_test_split_is_normalised_as_the_training_split():
    train = convert(X, classes=("a", "b", "c"))
    test = as_array_set((X[:2] // 2, [1, 1]), name="mine", split="test", like=train)
    assert (test.mean, test.std, test.classes) == (train.mean, train.std, ("a", "b", "c"))
    with pytest.raises(InputError, match=r"the test samples of 'mine' have the shape \(8, 8, 3\)"):
        as_array_set((X[:2, :, :8], [1, 1]), name="mine", split="test", like=train)
    with pytest.raises(InputError, match=r"'mine' holds the label 3, outside 0..2"):
        as_array_set((X[:2], [1, 3]), name="mine", split="test", like=train)
    assert as_array_set(train, name="mine", split="test").split == "test"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((X / 255 - 0.5, Y), r"holds float64 values from -0\.5 to 0\.5, and they must lie from 0 to 1"),
        ((X.astype(np.float32), Y), r"holds float32 values from 0 to 255, .* leave a normalisation out"),
        ((X.astype(np.int32) * 2, Y), r"int32 values from 0 to 510, and they must lie from 0 to 255"),
        ((np.where(X[3, 4, 5, 1] == X, np.nan, X / 255), Y), "holds NaN or infinite values"),
        ((np.where(X[3, 4, 5, 1] == X, np.inf, X / 255), Y), "holds NaN or infinite values"),
        ((X.astype(object), Y), "holds object values"),
        ((X[..., :2].repeat(4, -1), Y), r"has the shape \(12, 8, 9, 8\)"),
        ((X[:0], Y[:0]), "has no train sample"),
        ((X, Y[:11]), r"must be one integer per sample, 12 in all, got int64 of shape \(11,\)"),
        ((X, Y + 1), "holds no label 0. Number the classes from 0 on"),
        ((X, Y * 0), r"has 1 class\(es\), and a classifier needs two"),
        (iter([]), "must be a pair .* or a data set with a length, got list_iterator"),
        (Pairs([]), "'mine' has no sample"),
        (Pairs([X[0]]), r"sample 0 of 'mine' is a ndarray, expected a pair"),
        (Pairs([(X[0], 0), (X[1, :, :8], 1)]), r"sample 1 of 'mine' has the shape \(8, 8, 3\), sample 0 \(8, 9, 3\)"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(data, reason):
    with pytest.raises(InputError, match=reason) as caught:
        as_array_set(data, name="mine", split="train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"y": np.array(y)}, "'mine' (must be one integer per sample|holds the label)") for y in WRONG_LABELS),
        ({"x": np.zeros((2, 8, 8, 1), np.float32)}, r"needs uint8 .*, got float32 \(2, 8, 8, 1\)"),
        ({"mean": (0.0, 0.0)}, r"has 1 channels, got mean \(0\.0, 0\.0\)"),
        ({"std": (0.0,)}, r"std \(0\.0,\); .* above 0"),
        ({"provenance": {"sample_shape": [64]}}, r"needs float32 rows of \(64,\), got uint8"),
    ],
)
def test_no_set_is_made_that_the_loader_could_not_use(changes, reason):
    right = {"x": np.zeros((2, 8, 8, 1), np.uint8), "y": np.array([0, 1]), "mean": (0.0,), "std": (1.0,)}
    assert ArraySet(name="mine", split="train", classes=("a", "b"), **right).y.dtype == np.int64
    with pytest.raises(InputError, match=reason):
        ArraySet(name="mine", split="train", classes=("a", "b"), **(right | changes))
