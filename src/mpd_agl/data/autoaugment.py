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

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import imageops
from mpd_agl.data.counter import uniform
from mpd_agl.errors import InputError, unknown_name

FILL = 128
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

GEOMETRIC: dict[str, Callable[[float, int, int], tuple[float, ...]]] = {
    "shear-x": imageops.shear_x,
    "shear-y": imageops.shear_y,
    "translate-x": imageops.translate_x,
    "translate-y": imageops.translate_y,
    "rotate": imageops.rotate,
}
SIGNED = frozenset({*GEOMETRIC, "color", "contrast", "brightness", "sharpness"})


def value(name: str, magnitude: int, H: int, W: int) -> float:
    """Give an operation's parameter at a magnitude from 0 to 9, without sign; 0 for operations that have none."""
    share = magnitude / 9
    ranges = {
        "shear-x": 0.3 * share,
        "shear-y": 0.3 * share,
        "translate-x": 150 / 331 * W * share,
        "translate-y": 150 / 331 * H * share,
        "rotate": 30.0 * share,
        "color": 0.9 * share,
        "contrast": 0.9 * share,
        "brightness": 0.9 * share,
        "sharpness": 0.9 * share,
        "posterize": float(round(8 - 4 * share)),
        "solarize": 256.0 * (1 - share),
        "autocontrast": 0.0,
        "equalize": 0.0,
        "invert": 0.0,
    }
    if name not in ranges:
        raise unknown_name("image operation", name, ranges)
    return ranges[name]


@dataclass(frozen=True, kw_only=True)
class _Action:
    """One operation at one magnitude and sign, which is what a step of a policy does to an image."""

    name: str
    value: float
    """The parameter: pixels, degrees, shear, factor, bits or threshold, sign included."""


@lru_cache(maxsize=64)
def _actions(policy: str, H: int, W: int) -> tuple[tuple[_Action, ...], NDArray[np.intp], NDArray[np.float64]]:
    """List the policy's actions; give the action by [sub-policy, step, sign], the odds by [sub-policy, step]."""
    if policy not in POLICIES:
        raise unknown_name("AutoAugment policy", policy, POLICIES)
    steps = POLICIES[policy]
    actions: dict[_Action, int] = {}
    which = np.empty((len(steps), 2, 2), dtype=np.intp)
    odds = np.empty((len(steps), 2))
    for i, pair in enumerate(steps):
        for j, (name, probability, magnitude) in enumerate(pair):
            odds[i, j] = probability
            for k, sign in enumerate((-1.0, 1.0)):
                v = value(name, magnitude, H, W) * (sign if name in SIGNED else 1.0)
                if name in ("color", "contrast", "brightness", "sharpness"):
                    v += 1.0
                which[i, j, k] = actions.setdefault(_Action(name=name, value=v), len(actions))
    # Actions are numbered by family and name, so that sorting puts the images of one family, and of one operation,
    # side by side.
    ordered = sorted(actions, key=lambda a: (_FAMILY.get(a.name, 0), a.name, a.value))
    rank = np.array([ordered.index(action) for action in actions])
    return tuple(ordered), rank[which], odds


def apply(images: imageops.Images, name: str, value_N: NDArray[np.float64], fill: int = FILL) -> imageops.Images:
    """Apply one operation with one parameter per image, its sign (and the 1 of an enhancement's factor) included."""
    return _FAMILIES[_FAMILY.get(name, 0)](images, [(name, slice(None))], value_N, fill)


Runs = list[tuple[str, slice]]
"""Which images get which operation. They are neighbours in the batch, so that a family of operations is one call."""


def _geometric(images: imageops.Images, runs: Runs, value_N: NDArray[np.float64], fill: int) -> imageops.Images:
    _, H, W, _ = images.shape
    matrices = [GEOMETRIC[name](float(v), H, W) for name, part in runs for v in value_N[part]]
    return imageops.affine(images, np.stack([imageops.source_P(matrix, H, W) for matrix in matrices]), fill)


def _blended(images: imageops.Images, runs: Runs, value_N: NDArray[np.float64], fill: int) -> imageops.Images:
    zero = np.empty_like(images)
    for name, part in runs:
        zero[part] = imageops.grey(images[part])[..., None] if name == "color" else imageops.smooth(images[part])
    return imageops.blend(zero, images, value_N)


def _tabled(images: imageops.Images, runs: Runs, value_N: NDArray[np.float64], fill: int) -> imageops.Images:
    table_NCL = np.empty((len(images), images.shape[3], 256), dtype=np.uint8)
    for name, part in runs:
        if name == "autocontrast":
            table_NCL[part] = imageops.autocontrast_table_N(images[part])
        elif name == "equalize":
            table_NCL[part] = imageops.equalize_table_N(images[part])
        elif name == "contrast":
            table_NCL[part] = imageops.contrast_table_N(images[part], value_N[part])
        else:
            table_NCL[part] = np.stack([_fixed_table(name, float(v)) for v in value_N[part]])[:, None]
    return imageops.apply_table(images, table_NCL)


_FAMILIES = (_tabled, _geometric, _blended)
_FAMILY = {**dict.fromkeys(GEOMETRIC, 1), "color": 2, "sharpness": 2}


@lru_cache(maxsize=256)
def _fixed_table(name: str, v: float) -> NDArray[np.uint8]:
    if name == "invert":
        return imageops.invert_table()
    if name == "solarize":
        return imageops.solarize_table(v)
    if name == "posterize":
        return imageops.posterize_table(int(v))
    if name == "brightness":
        return imageops.brightness_table(v)
    raise unknown_name(
        "image operation", name, (*SIGNED, "autocontrast", "equalize", "invert", "solarize", "posterize")
    )


def draw(
    policy: str, *, seed: int, epoch: int, index_N: NDArray[np.integer], H: int, W: int
) -> list[list[tuple[str, float]]]:
    """Say what `autoaugment` does to each sample: a list of (operation, parameter), empty where nothing happens."""
    actions, chosen_N2 = _draw(policy, seed, epoch, index_N, H, W)
    return [[(actions[a].name, actions[a].value) for a in row if a >= 0] for row in chosen_N2]


def _draw(
    policy: str, seed: int, epoch: int, index_N: NDArray[np.integer], H: int, W: int
) -> tuple[tuple[_Action, ...], NDArray[np.intp]]:
    actions, which, odds = _actions(policy, H, W)
    u_N5 = uniform(seed, epoch, index_N, _STREAM, 5)
    sub_N = (u_N5[:, 0] * len(odds)).astype(np.intp)
    sign_N2 = (u_N5[:, 3:5] >= 0.5).astype(np.intp)
    chosen_N2 = which[sub_N[:, None], np.arange(2), sign_N2]
    return actions, np.where(u_N5[:, 1:3] < odds[sub_N], chosen_N2, -1)


def autoaugment(
    images: imageops.Images, policy: str, *, seed: int, epoch: int, index_N: NDArray[np.integer], fill: int = FILL
) -> imageops.Images:
    """Augment uint8 images_NHWC by a policy (`cifar` or `imagenet`); randomness from (seed, epoch, index) alone."""
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
        raise InputError(
            f"AutoAugment needs uint8 images (N, H, W, 1 or 3), got {images.dtype} {images.shape}; "
            "leave it out for event frames."
        )
    _, H, W, _ = images.shape
    actions, chosen_N2 = _draw(policy, seed, epoch, index_N, H, W)
    out = images.copy()
    value_A = np.array([action.value for action in actions])
    starts = [a for a, action in enumerate(actions) if a == 0 or actions[a - 1].name != action.name]
    for j in range(2):
        order = np.argsort(chosen_N2[:, j], kind="stable")
        bounds = np.searchsorted(chosen_N2[order, j], [*starts, len(actions)]).tolist()
        for family, operate in enumerate(_FAMILIES):
            runs = [
                (actions[a].name, slice(left, right))
                for a, left, right in zip(starts, bounds[:-1], bounds[1:], strict=True)
                if left < right and _FAMILY.get(actions[a].name, 0) == family
            ]
            if runs:
                first, last = runs[0][1].start, runs[-1][1].stop
                rows = order[first:last]
                shifted = [(name, slice(part.start - first, part.stop - first)) for name, part in runs]
                out[rows] = operate(out[rows], shifted, value_A[chosen_N2[rows, j]], fill)
    return out
