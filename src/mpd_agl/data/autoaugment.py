"""AutoAugment (Cubuk et al. 2019, "AutoAugment: Learning Augmentation Strategies from Data"), a batch at a time.

A policy is 25 sub-policies of two operations; an image draws one sub-policy, whether each operation takes place, and
its sign. Published implementations differ in small things; here is what this one does:

- Ten magnitudes, evenly spaced over the paper's ranges, both ends included, as the PyTorch ports have it (the first
  TensorFlow code divides by ten and never reaches the end). Translation is 150/331 of the image's side: the paper's
  range in pixels at its 331-pixel inputs.
- Geometric operations take the nearest pixel and fill with grey 128, as the policy code most used for spiking
  networks fills. (torchvision fills with black by default.)
- Rotation, shear, translation and the four enhancements have a random sign; an enhancement's factor is
  1 +- magnitude.

Shapes: N images, H height, W width, C channels, P = H*W pixels.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import imageops
from mpd_agl.data.counter import uniform
from mpd_agl.errors import InputError, unknown_name

_STREAM = 0xAA

Step = tuple[str, float, int]
"""An operation: its name, its probability, its magnitude on a scale of 0 to 9."""

_CIFAR = """
invert 0.1 7, contrast 0.2 6       | rotate 0.7 2, translate-x 0.3 9     | sharpness 0.8 1, sharpness 0.9 3
shear-y 0.5 8, translate-y 0.7 9   | autocontrast 0.5 8, equalize 0.9 2  | shear-y 0.2 7, posterize 0.3 7
color 0.4 3, brightness 0.6 7      | sharpness 0.3 9, brightness 0.7 9   | equalize 0.6 5, equalize 0.5 1
contrast 0.6 7, sharpness 0.6 5    | color 0.7 7, translate-x 0.5 8      | equalize 0.3 7, autocontrast 0.4 8
translate-y 0.4 3, sharpness 0.2 6 | brightness 0.9 6, color 0.2 8       | solarize 0.5 2, invert 0.0 3
equalize 0.2 0, autocontrast 0.6 0 | equalize 0.2 8, equalize 0.6 4      | color 0.9 9, equalize 0.6 6
autocontrast 0.8 4, solarize 0.2 8 | brightness 0.1 3, color 0.7 0       | solarize 0.4 5, autocontrast 0.9 3
translate-y 0.9 9, translate-y 0.7 9 | autocontrast 0.9 2, solarize 0.8 3 | equalize 0.8 8, invert 0.1 3
translate-y 0.7 9, autocontrast 0.9 1
"""

_IMAGENET = """
posterize 0.4 8, rotate 0.6 9      | solarize 0.6 5, autocontrast 0.6 5  | equalize 0.8 8, equalize 0.6 3
posterize 0.6 7, posterize 0.6 6   | equalize 0.4 7, solarize 0.2 4      | equalize 0.4 4, rotate 0.8 8
solarize 0.6 3, equalize 0.6 7     | posterize 0.8 5, equalize 1.0 2     | rotate 0.2 3, solarize 0.6 8
equalize 0.6 8, posterize 0.4 6    | rotate 0.8 8, color 0.4 0           | rotate 0.4 9, equalize 0.6 2
equalize 0.0 7, equalize 0.8 8     | invert 0.6 4, equalize 1.0 8        | color 0.6 4, contrast 1.0 8
rotate 0.8 8, color 1.0 2          | color 0.8 8, solarize 0.8 7         | sharpness 0.4 7, invert 0.6 8
shear-x 0.6 5, equalize 1.0 9      | color 0.4 0, equalize 0.6 3         | equalize 0.4 7, solarize 0.2 4
solarize 0.6 5, autocontrast 0.6 5 | invert 0.6 4, equalize 1.0 8        | color 0.6 4, contrast 1.0 8
equalize 0.8 8, equalize 0.6 3
"""


def _parse(text: str) -> tuple[tuple[Step, Step], ...]:
    """Read a policy from its table: sub-policies between bars, steps between commas."""

    def step(words: str) -> Step:
        name, probability, magnitude = words.split()
        return name, float(probability), int(magnitude)

    pairs = [pair.split(",") for line in text.strip().splitlines() for pair in line.split("|")]
    return tuple((step(first), step(second)) for first, second in pairs)


POLICIES: dict[str, tuple[tuple[Step, Step], ...]] = {"cifar": _parse(_CIFAR), "imagenet": _parse(_IMAGENET)}

ENHANCEMENTS = ("color", "contrast", "brightness", "sharpness")
SIGNED = frozenset({*imageops.GEOMETRIC, *ENHANCEMENTS})


def value(name: str, magnitude: int, H: int, W: int) -> float:
    """Give an operation's parameter at a magnitude from 0 to 9, without sign; 0 for operations that have none."""
    share = magnitude / 9
    ranges = {
        "shear-x": 0.3 * share,
        "shear-y": 0.3 * share,
        "translate-x": 150 / 331 * W * share,
        "translate-y": 150 / 331 * H * share,
        "rotate": 30.0 * share,
        **dict.fromkeys(ENHANCEMENTS, 0.9 * share),
        "posterize": float(round(8 - 4 * share)),
        "solarize": 256.0 * (1 - share),
    }
    return ranges.get(name, 0.0)


@lru_cache(maxsize=64)
def _steps(policy: str, H: int, W: int) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """The number of the operation and its odds by [sub-policy, step]; the parameter by [sub-policy, step, sign]."""
    if policy not in POLICIES:
        raise unknown_name("AutoAugment policy", policy, POLICIES)
    steps = POLICIES[policy]
    operation_S2 = np.array([[imageops.OPERATIONS.index(name) for name, _, _ in pair] for pair in steps])
    odds_S2 = np.array([[probability for _, probability, _ in pair] for pair in steps])
    value_S22 = np.array(
        [
            [
                [value(name, magnitude, H, W) * (sign if name in SIGNED else 1) + (name in ENHANCEMENTS)]
                for sign in (-1.0, 1.0)
            ]
            for pair in steps
            for name, _, magnitude in pair
        ]
    )
    return operation_S2, odds_S2, value_S22.reshape(len(steps), 2, 2)


def draw(
    policy: str, *, seed: int, epoch: int, index_N: NDArray[np.integer], H: int, W: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """What happens to each sample in each of the two steps: the operation's number in `OPERATIONS` or -1, its value."""
    operation_S2, odds_S2, value_S22 = _steps(policy, H, W)
    u_N5 = uniform(seed, epoch, index_N, _STREAM, 5)
    sub_N = (u_N5[:, 0] * len(odds_S2)).astype(np.intp)
    sign_N2 = (u_N5[:, 3:5] >= 0.5).astype(np.intp)
    operation_N2 = np.where(u_N5[:, 1:3] < odds_S2[sub_N], operation_S2[sub_N], -1)
    return operation_N2, value_S22[sub_N[:, None], np.arange(2), sign_N2]


def autoaugment(
    images: imageops.Images, policy: str, *, seed: int, epoch: int, index_N: NDArray[np.integer]
) -> imageops.Images:
    """Augment uint8 images_NHWC by a policy (`cifar` or `imagenet`); randomness from (seed, epoch, index) alone."""
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
        raise InputError(
            f"AutoAugment needs uint8 images (N, H, W, 1 or 3), got {images.dtype} {images.shape}; "
            "leave it out for event frames."
        )
    operation_N2, value_N2 = draw(policy, seed=seed, epoch=epoch, index_N=index_N, H=images.shape[1], W=images.shape[2])
    out = images.copy()
    for step in range(2):
        for number in np.unique(operation_N2[:, step]).tolist():
            if number >= 0:
                rows = np.flatnonzero(operation_N2[:, step] == number)
                out[rows] = imageops.apply(out[rows], imageops.OPERATIONS[number], value_N2[rows, step])
    return out
