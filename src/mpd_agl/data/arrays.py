"""Arrays, tensors and torch data sets as an `ArraySet`.

Shapes: N samples, T frames, H height, W width, C channels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import store
from mpd_agl.data.store import blocks
from mpd_agl.data.types import ArraySet, check_labels
from mpd_agl.errors import InputError

CHANNELS = (1, 2, 3)
"""Grey, two polarities of events, RGB."""


def channels_last(x: NDArray[Any], name: str) -> NDArray[Any]:
    """A view of images or frames with the channels last; the shape must leave no doubt which axis they are."""
    if x.ndim == 3:
        return x[..., None]
    if x.ndim in (4, 5) and (x.shape[-1] in CHANNELS) != (x.shape[-3] in CHANNELS):
        return x if x.shape[-1] in CHANNELS else np.moveaxis(x, -3, -1)
    raise InputError(
        f"{name} has the shape {x.shape}, and images are (N, H, W), (N, H, W, C) or (N, C, H, W), frames "
        "(N, T, H, W, C) or (N, T, C, H, W), with C = 1, 2 or 3 and H and W above 3. Reshape the array."
    )


def as_bytes(x: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Pixels as uint8: integers from 0 to 255 unchanged, floats from 0 to 1 times 255, rounded."""
    if x.dtype == np.uint8 or x.size == 0:
        return x.astype(np.uint8, copy=False)
    _refuse_values(x, name)
    low, high, top = float(x.min()), float(x.max()), 1 if x.dtype.kind in "fb" else 255
    if low < 0 or high > top:
        raise InputError(
            f"{name} holds {x.dtype} values from {low:g} to {high:g}, and they must lie from 0 to {top}. Divide floats "
            "by their largest value, and leave a normalisation out: mean and std are measured and applied in training."
        )
    scaled: NDArray[np.float64] = np.rint(np.multiply(x, 255 / top, dtype=np.float64))
    return scaled.astype(np.uint8)


def _refuse_values(x: NDArray[Any], name: str) -> None:
    if x.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {x.dtype} values, expected numbers. Convert the array.")
    if not np.isfinite(x).all():
        raise InputError(f"{name} holds NaN or infinite values. Correct the array.")


def class_names(classes: Sequence[str] | None, y_N: NDArray[np.int64], name: str) -> tuple[str, ...]:
    """The names of the classes: as given, or the numbers 0..K-1, each of which the training labels must hold."""
    if classes is None:
        missing = np.flatnonzero(np.bincount(np.maximum(y_N, 0)) == 0)
        if len(missing):
            raise InputError(f"{name} holds no label {missing[0]}. Number the classes from 0 on without a gap.")
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
        return replace(data, split=split)
    if like is not None and like.sample_shape is not None:
        as_is = True
    x, y = _arrays(data, name, as_is)
    if as_is is None:
        as_is = x.ndim != 3 and not (x.ndim in (4, 5) and {x.shape[-1], x.shape[-3]} & set(CHANNELS))
    what = f"the x of {name!r}"
    x = x if as_is else channels_last(x, what)
    if x.ndim < 2 or not x.size:
        raise InputError(f"data set {name!r} has no {split} sample, got x of shape {x.shape}. Give at least one.")
    shape = x.shape[1:]
    if like is not None and shape != (like.sample_shape or like.x.shape[1:]):
        raise InputError(
            f"the {split} samples of {name!r} have the shape {shape}, those of the {like.split} split "
            f"{like.sample_shape or like.x.shape[1:]}. Give both the same."
        )
    y_N = check_labels(_numpy(y), len(x), f"data set {name!r}")
    names = like.classes if like is not None else class_names(classes, y_N, f"the y of {name!r}")
    facts = {"source": f"{type(data).__name__} in memory", "partial": False}
    if as_is:
        _refuse_values(x, what)
        x = np.ascontiguousarray(x, dtype=np.float32)
        _refuse_values(x, what)  # a float64 may be too large for float32
        facts |= {
            "sha256": hashlib.sha256(x.astype("<f4").tobytes()).hexdigest(),
            "labels_sha256": store.labels_digest(y_N),
            "sample_shape": list(shape),
        }
        mean, std = moments((0.0,), (1.0,), ())
        x = x.reshape(len(x), 1, -1, 1)
    else:
        x = np.concatenate([as_bytes(block, what) for block in blocks(x)])
        found = store.digest(store.in_memory(x, y_N, names, f"data set {name!r}"))
        mean, std = (like.mean, like.std) if like is not None else moments(found.mean, found.std, x.shape)
        facts |= {"sha256": found.sha256, "labels_sha256": found.labels_sha256}
    return ArraySet(name=name, split=split, x=x, y=y_N, classes=names, mean=mean, std=std, provenance=facts)


def _numpy(value: Any) -> Any:
    """A tensor's values as an array; other things unchanged."""
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
        item, what = data[i], f"sample {i} of {name!r}"
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise InputError(f"{what} is a {type(item).__name__}, expected a pair (image, label).")
        image = _sample(item[0], what, as_is)
        if images and image.shape != images[0].shape:
            raise InputError(
                f"{what} has the shape {image.shape}, sample 0 {images[0].shape}. Bring all images to one size."
            )
        images.append(image)
        labels.append(np.asarray(_numpy(item[1])))
    if not images:
        raise InputError(f"data set {name!r} has no sample. Give at least one.")
    return np.stack(images), np.stack(labels)


def _sample(value: Any, name: str, as_is: bool | None) -> NDArray[Any]:
    """One sample of a data set; images get their channels last, Pillow's are taken as well."""
    if hasattr(value, "getbands") and not as_is:
        from mpd_agl.data.images import flatten, is_grey

        value = flatten(value, 1 if is_grey(value) else 3)
    found = np.asarray(_numpy(value))
    if as_is or (as_is is None and found.ndim not in (2, 3, 4)):
        return found
    image: NDArray[Any] = as_bytes(channels_last(found[None], name)[0], name)
    return image
