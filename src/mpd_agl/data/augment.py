"""Augmentation of uint8 batches, images_NHWC or frames_NTHWC, before they become float32.

A pipeline is a tuple of steps, each a name or `name=value`, in the order they run; a sample's randomness is a
function of (seed, epoch, index) and the step's name alone, so batches, workers and restarts do not matter, nor do the
other steps. All frames of a recording get the same flip, shift and cut.

    crop=4              pad by 4 zeros on each side, cut out the old size at a random place
    flip                left to right, half of the time
    roll=5              shift by up to 5 pixels each way; what leaves on one side enters on the other
    autoaugment=cifar   or `imagenet`; see `autoaugment.py`
    cutout=16           a square of 16 pixels, its centre anywhere, set to the data set's mean (DeVries and Taylor 2017)

Shapes: N samples, T frames (1 for an image), H height, W width, C channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.autoaugment import POLICIES, autoaugment
from mpd_agl.data.counter import integers, uniform
from mpd_agl.errors import InputError, unknown_name

Batch = NDArray[np.uint8]

RECIPES: dict[str, tuple[str, ...]] = {
    "none": (),
    "cifar": ("crop=4", "flip", "autoaugment=cifar"),
    "imagenet": ("crop=4", "flip", "autoaugment=imagenet"),
    "dvs": ("flip", "roll=5"),
}
"""The paper's pipelines, by kind of data (Tiny-ImageNet: `imagenet`)."""

_STREAMS = {"crop": 1, "flip": 2, "roll": 3, "cutout": 4}


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a sample's randomness comes from."""

    seed: int
    epoch: int
    index_N: NDArray[np.int64]
    """Position of each sample in its data set."""

    def uniform(self, step: str, count: int) -> NDArray[np.float64]:
        """Draw numbers in [0, 1) for a step, one row per sample."""
        return uniform(self.seed, self.epoch, self.index_N, _STREAMS[step], count)


def crop(x: Batch, padding: int, key: Key) -> Batch:
    """Pad by zeros on all sides, then cut out the old size at a random place: a shift by up to `padding` pixels."""
    H, W = x.shape[-3:-1]
    if padding >= min(H, W):
        raise InputError(
            f"cannot crop {W}x{H} images with a padding of {padding}; use a smaller one, for example 'crop=4'."
        )
    shift_N2 = integers(key.uniform("crop", 2), -padding, padding)
    out = np.zeros_like(x)
    for out_i, x_i, (dy, dx) in zip(out, x, shift_N2.tolist(), strict=True):
        out_i[..., max(0, -dy) : H - max(0, dy), max(0, -dx) : W - max(0, dx), :] = x_i[
            ..., max(0, dy) : H - max(0, -dy), max(0, dx) : W - max(0, -dx), :
        ]
    return out


def flip(x: Batch, key: Key) -> Batch:
    """Mirror half of the samples, left to right."""
    rows = np.flatnonzero(key.uniform("flip", 1)[:, 0] < 0.5)
    picked = x[rows]
    mirrored = np.empty_like(picked)
    for c in range(x.shape[-1]):  # numpy copies one strided channel faster than runs of three bytes
        mirrored[..., c] = picked[..., ::-1, c]
    out = x.copy()
    out[rows] = mirrored
    return out


def roll(x: Batch, pixels: int, key: Key) -> Batch:
    """Shift each sample by up to `pixels` each way, cyclically."""
    out = np.empty_like(x)
    for out_i, x_i, shift in zip(out, x, integers(key.uniform("roll", 2), -pixels, pixels).tolist(), strict=True):
        out_i[:] = np.roll(x_i, shift, axis=(-3, -2))
    return out


def cutout(x: Batch, side: int, fill_C: NDArray[np.uint8], key: Key) -> Batch:
    """Set a square to `fill_C`; its centre is a random pixel, so it may reach over the border."""
    H, W = x.shape[-3:-1]
    u_N2 = key.uniform("cutout", 2)
    top_N = integers(u_N2[:, 0], 0, H - 1) - side // 2
    left_N = integers(u_N2[:, 1], 0, W - 1) - side // 2
    out = x.copy()
    for out_i, top, left in zip(out, top_N.tolist(), left_N.tolist(), strict=True):
        out_i[..., max(0, top) : max(0, top + side), max(0, left) : max(0, left + side), :] = fill_C
    return out


def normalise(
    x: Batch, mean_C: Sequence[float], std_C: Sequence[float], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Give `(x/255 - mean)/std` as float32, folded into one product and one sum."""
    scale_C = (1.0 / (255.0 * np.asarray(std_C))).astype(np.float32)
    shift_C = (-np.asarray(mean_C) / np.asarray(std_C)).astype(np.float32)
    out = np.empty(x.shape, dtype=np.float32) if out is None else out
    C = x.shape[-1]
    if x.flags.c_contiguous and out.flags.c_contiguous and x.size:
        # One long row per sample: numpy's inner loop would otherwise run over C = 3 values only.
        repeat = x.shape[-2]
        rows, flat = x.reshape(-1, repeat * C), out.reshape(-1, repeat * C)
        np.multiply(rows, np.tile(scale_C, repeat), out=flat, dtype=np.float32)
        flat += np.tile(shift_C, repeat)
        return out
    np.multiply(x, scale_C, out=out, dtype=np.float32)
    out += shift_C
    return out


class Augmentation:
    """A pipeline, which is checked when it is made.

    Augmentation(("crop=4", "flip"), mean)(x, seed=0, epoch=3, index_N=index)
    """

    def __init__(self, steps: Sequence[str] | str, mean: Sequence[float]) -> None:
        if isinstance(steps, str):
            if steps not in RECIPES:
                raise unknown_name("augmentation recipe", steps, RECIPES)
            steps = RECIPES[steps]
        self.steps = tuple(steps)
        fill_C = np.clip(np.round(np.asarray(mean) * 255.0), 0, 255).astype(np.uint8)
        self._run = tuple(_make(step, fill_C) for step in self.steps)

    def __call__(self, x: Batch, *, seed: int, epoch: int, index_N: NDArray[np.int64]) -> Batch:
        """Augment a batch. A pipeline without steps returns the batch itself."""
        if len(x) != len(index_N):
            raise InputError(
                f"augmentation got {len(x)} samples and {len(index_N)} indices; give one index per sample."
            )
        key = Key(seed=seed, epoch=epoch, index_N=index_N)
        for run in self._run:
            x = run(x, key)
        return x


def _make(step: str, fill_C: NDArray[np.uint8]) -> Callable[[Batch, Key], Batch]:
    """Turn `name=value` into a function of a batch and its key."""
    name, has_value, text = step.partition("=")
    steps: dict[str, tuple[str, Callable[[Batch, Key, int], Batch]]] = {
        "crop": ("4", lambda x, key, pixels: crop(x, pixels, key)),
        "roll": ("5", lambda x, key, pixels: roll(x, pixels, key)),
        "cutout": ("16", lambda x, key, pixels: cutout(x, pixels, fill_C, key)),
    }
    if name == "flip":
        if has_value:
            raise InputError(f"augmentation step 'flip' takes no value, got {step!r}; write 'flip'.")
        return flip
    if name == "autoaugment":
        policy = text if has_value else "cifar"
        if policy not in POLICIES:
            raise unknown_name("AutoAugment policy", policy, POLICIES)
        return lambda x, key: autoaugment(x, policy, seed=key.seed, epoch=key.epoch, index_N=key.index_N)
    if name not in steps:
        raise unknown_name("augmentation step", name, ("autoaugment", "flip", *steps))
    usual, run = steps[name]
    text = text if has_value else usual
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise InputError(
            f"augmentation step {step!r} needs a whole number of pixels from 1 to 64; write for example '{name}=4'."
        )
    return lambda x, key: run(x, key, int(text))
