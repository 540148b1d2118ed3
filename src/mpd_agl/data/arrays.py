"""Arrays, tensors and torch data sets as an `ArraySet`, and the checks that every set must pass.

Shapes: N samples, T frames, H height, W width, C channels.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import store
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError

CHANNELS = (1, 2, 3)
"""Grey, two polarities of events, RGB."""


def check_array_set(found: ArraySet) -> ArraySet:
    """Refuse a set that the loader could not use, in one sentence; else give it back."""
    x, y, K = found.x, found.y, len(found.classes)
    if found.sample_shape is not None:
        if x.dtype != np.float32 or x.shape[1:] != (1, math.prod(found.sample_shape), 1) or y.shape != x.shape[:1]:
            raise InputError(
                f"data set {found.name!r} needs float32 rows of samples {found.sample_shape} and as many labels, "
                f"got {x.dtype} {x.shape} and {len(y)} labels."
            )
    elif x.ndim not in (4, 5) or x.dtype != np.uint8 or y.shape != x.shape[:1]:
        raise InputError(
            f"data set {found.name!r} needs uint8 (N, H, W, C) or (N, T, H, W, C) and as many labels, "
            f"got {x.dtype} {x.shape} and {len(y)} labels; convert it again."
        )
    C = x.shape[-1]
    if len(found.mean) != C or len(found.std) != C or min(found.std) <= 0:
        raise InputError(
            f"data set {found.name!r} has {C} channels, got mean {found.mean} and std {found.std}; "
            "give one of each per channel, std above 0."
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"the labels of data set {found.name!r} must be integers, got {y.dtype}; convert them.")
    if len(y) and (y.min() < 0 or y.max() >= K):
        bad = int(y.min()) if y.min() < 0 else int(y.max())
        raise InputError(
            f"data set {found.name!r} has {K} classes and holds the label {bad}, outside 0..{K - 1}; "
            "correct the labels."
        )
    return found


def channels_last(x: NDArray[Any], name: str) -> NDArray[Any]:
    """A view of images or frames with the channels last; the shape must leave no doubt which axis they are."""
    if x.ndim == 3:
        return x[..., None]
    if x.ndim in (4, 5):
        last, before = x.shape[-1] in CHANNELS, x.shape[-3] in CHANNELS
        if last and not before:
            return x
        if before and not last:
            return np.moveaxis(x, -3, -1)
    raise InputError(
        f"{name} has the shape {x.shape}, and images are (N, H, W), (N, H, W, C) or (N, C, H, W), frames "
        "(N, T, H, W, C) or (N, T, C, H, W), with C = 1, 2 or 3 and H and W above 3. Reshape the array."
    )


def as_bytes(x: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Pixels as uint8: integers from 0 to 255 as they are, floats from 0 to 1 times 255, rounded."""
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {x.dtype} values, expected uint8 or floats from 0 to 1. Convert the array.")
    if x.size == 0:
        return x.astype(np.uint8)
    if not np.isfinite(x).all():
        raise InputError(f"{name} holds NaN or infinite values. Correct the array.")
    low, high, top = float(x.min()), float(x.max()), 1 if x.dtype.kind in "fb" else 255
    if low < 0 or high > top:
        raise InputError(
            f"{name} holds {x.dtype} values from {low:g} to {high:g}, and they must lie from 0 to {top}. Divide floats "
            "by their largest value, and leave a normalisation out: mean and std are measured and applied in training."
        )
    scaled: NDArray[np.float64] = np.rint(np.multiply(x, 255 / top, dtype=np.float64))
    return scaled.astype(np.uint8)


def as_labels(y: Any, count: int, name: str) -> NDArray[np.int64]:
    """Labels as one row of int64; refuses floats, one-hot rows and another number of labels than samples."""
    labels = np.asarray(_numpy(y))
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        raise InputError(
            f"{name} must be one integer per sample, {count:,} in all, got {labels.dtype} of shape {labels.shape}. "
            "Give the class of each sample as a number from 0 on."
        )
    return labels.astype(np.int64)


def class_names(classes: Sequence[str] | None, y_N: NDArray[np.int64], name: str) -> tuple[str, ...]:
    """The names of the classes: as given, or the numbers 0..K-1, each of which the training labels must hold."""
    if classes is None:
        missing = np.flatnonzero(np.bincount(np.maximum(y_N, 0)) == 0)
        if len(missing):
            raise InputError(f"{name} holds no label {int(missing[0])}. Number the classes from 0 on without a gap.")
        classes = [str(k) for k in range(int(y_N.max(initial=-1)) + 1)]
    if len(classes) < 2:
        raise InputError(f"{name} has {len(classes)} class(es), and a classifier needs two. Add another class.")
    return tuple(map(str, classes))


def moments(
    mean: Sequence[float], std: Sequence[float], shape: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What to normalise with: the mean and std as measured; frames of two polarities keep their plain counts."""
    if len(shape) == 5 and shape[-1] == 2:
        return (0.0, 0.0), (1 / 255, 1 / 255)
    return tuple(map(float, mean)), tuple(max(float(value), 1 / 255) for value in std)


def as_array_set(
    data: Any,
    *,
    name: str,
    split: str,
    classes: Sequence[str] | None = None,
    like: ArraySet | None = None,
    as_is: bool | None = False,
) -> ArraySet:
    """Turn `(x, y)` arrays or tensors, or a torch `Dataset` of (image, label), into an `ArraySet`.

    Images are uint8, or floats from 0 to 1, channels first or last; labels are integers from 0 on. Mean and std are
    measured. For a test split pass the training set as `like`: it then has that set's classes, mean and std.

    With `as_is` samples of any shape are kept as float32; None keeps those so that can be neither images nor frames.

    >>> x = np.zeros((4, 1, 8, 8), np.float32)
    >>> found = as_array_set((x, np.array([0, 1, 0, 1])), name="mine", split="train")
    >>> found.x.shape, found.classes
    ((4, 8, 8, 1), ('0', '1'))
    """
    if isinstance(data, ArraySet):
        return check_array_set(replace(data, split=split))
    as_is = True if like is not None and like.sample_shape is not None else as_is
    x, y = _arrays(data, name, as_is)
    like_images = x.ndim == 3 or (x.ndim in (4, 5) and bool({x.shape[-1], x.shape[-3]} & set(CHANNELS)))
    if as_is or (as_is is None and not like_images):
        return _as_it_is(x, y, type(data).__name__, name, split, classes, like)
    x = channels_last(x, f"the x of {name!r}")
    if not len(x):
        raise InputError(f"data set {name!r} has no {split} sample. Give at least one.")
    y_N = as_labels(y, len(x), f"the y of {name!r}")
    x = np.concatenate([as_bytes(block, f"the x of {name!r}") for block in blocks(x)])
    if like is not None and x.shape[1:] != like.x.shape[1:]:
        raise InputError(
            f"the {split} images of {name!r} have the shape {x.shape[1:]}, those of the {like.split} split "
            f"{like.x.shape[1:]}. Give both the same."
        )
    names = like.classes if like is not None else class_names(classes, y_N, f"the y of {name!r}")
    whole = store.Pixels(
        shape=x.shape, y_N=y_N, classes=names, parts=lambda: iter([(name, part) for part in blocks(x)]), origin=name
    )
    unmeasured = ArraySet(
        name=name, split=split, x=x, y=y_N, classes=names, mean=(0.0,) * x.shape[-1], std=(1.0,) * x.shape[-1]
    )
    check_array_set(unmeasured)  # before the labels are counted
    found = store.digest(whole)
    mean, std = (like.mean, like.std) if like is not None else moments(found.mean, found.std, x.shape)
    provenance = {
        "source": f"{type(data).__name__} in memory",
        "partial": False,
        "sha256": found.sha256,
        "labels_sha256": found.labels_sha256,
        "mean": list(mean),
        "std": list(std),
    }
    return replace(unmeasured, mean=mean, std=std, provenance=provenance)


def _as_it_is(
    x: NDArray[Any],
    y: Any,
    kind: str,
    name: str,
    split: str,
    classes: Sequence[str] | None,
    like: ArraySet | None,
) -> ArraySet:
    """Samples of any shape, as float32."""
    if x.dtype.kind not in "fiub" or x.ndim < 2 or not x.size:
        raise InputError(
            f"the x of {name!r} must hold at least one {split} sample of numbers, (N, ...), got {x.dtype} {x.shape}."
        )
    x_N = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(x_N).all():
        raise InputError(f"the x of {name!r} holds NaN or infinite values. Correct the array.")
    if like is not None and like.sample_shape != x.shape[1:]:
        raise InputError(
            f"the {split} samples of {name!r} have the shape {x.shape[1:]}, those of the {like.split} split "
            f"{like.sample_shape or like.x.shape[1:]}. Give both the same."
        )
    y_N = as_labels(y, len(x), f"the y of {name!r}")
    names = like.classes if like is not None else class_names(classes, y_N, f"the y of {name!r}")
    provenance = {
        "source": f"{kind} in memory",
        "partial": False,
        "sha256": hashlib.sha256(x_N.astype("<f4").tobytes()).hexdigest(),
        "labels_sha256": hashlib.sha256(y_N.astype("<i8").tobytes()).hexdigest(),
        "sample_shape": list(x.shape[1:]),
    }
    rows = x_N.reshape(len(x), 1, -1, 1)
    found = ArraySet(
        name=name, split=split, x=rows, y=y_N, classes=names, mean=(0.0,), std=(1.0,), provenance=provenance
    )
    return check_array_set(found)


def blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Some samples at a time."""
    for start in range(0, len(x), store.BLOCK):
        yield x[start : start + store.BLOCK]


def _numpy(value: Any) -> Any:
    """A tensor's values as an array; other things as they are."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    return value


def _arrays(data: Any, name: str, as_is: bool | None = False) -> tuple[NDArray[Any], Any]:
    """The images and the labels of a pair of arrays, a `TensorDataset`, or a `Dataset` that is read through once."""
    data = getattr(data, "tensors", data)
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "shape"):
        return np.asarray(_numpy(data[0])), data[1]
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(
            f"data set {name!r} must be a pair (x, y) of arrays or a data set with a length, got "
            f"{type(data).__name__}. Read a stream into arrays first."
        )
    images: list[NDArray[Any]] = []
    labels: list[Any] = []
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise InputError(f"sample {i} of {name!r} is a {type(item).__name__}, expected a pair (image, label).")
        value = item[0] if hasattr(item[0], "getbands") else np.asarray(_numpy(item[0]))
        if as_is or (as_is is None and getattr(value, "ndim", 2) not in (2, 3, 4)):
            image = np.asarray(value)
        else:
            image = as_bytes(_image(item[0], f"sample {i} of {name!r}"), f"sample {i} of {name!r}")
        if images and image.shape != images[0].shape:
            raise InputError(
                f"sample {i} of {name!r} has the shape {image.shape}, sample 0 {images[0].shape}. "
                "Bring all images to one size."
            )
        images.append(image)
        labels.append(np.asarray(_numpy(item[1])))
    if not images:
        raise InputError(f"data set {name!r} has no sample. Give at least one.")
    return np.stack(images), np.stack(labels)


def _image(value: Any, name: str) -> NDArray[Any]:
    """One image of a data set as an array with the channels last; Pillow's images are taken as well."""
    if hasattr(value, "getbands"):
        from mpd_agl.data.images import flatten, is_grey

        value = np.asarray(flatten(value, 1 if is_grey(value) else 3))
    image_HWC: NDArray[Any] = channels_last(np.asarray(_numpy(value))[None], name)[0]
    return image_HWC
