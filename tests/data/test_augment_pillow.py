"""Every operation of AutoAugment against Pillow, pixel by pixel; and the policies against Pillow run image by image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from mpd_agl.data import imageops
from mpd_agl.data.autoaugment import POLICIES, SIGNED, autoaugment, draw, value
from mpd_agl.data.imageops import GEOMETRIC, OPERATIONS, apply

ENHANCE = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}


def pillow(image_HWC: np.ndarray, name: str, v: float) -> np.ndarray:
    """One operation by Pillow's own functions."""
    gray = image_HWC.shape[2] == 1
    image = Image.fromarray(image_HWC[..., 0] if gray else image_HWC)
    fill = 128 if gray else (128, 128, 128)
    if name == "rotate":
        out = image.rotate(v, resample=Image.Resampling.NEAREST, fillcolor=fill)
    elif name in GEOMETRIC:
        matrix = {
            "shear-x": (1, v, 0, 0, 1, 0),
            "shear-y": (1, 0, 0, v, 1, 0),
            "translate-x": (1, 0, v, 0, 1, 0),
            "translate-y": (1, 0, 0, 0, 1, v),
        }[name]
        out = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)
    elif name in ENHANCE:
        out = ENHANCE[name](image).enhance(v)
    elif name == "posterize":
        out = ImageOps.posterize(image, int(v))
    elif name == "solarize":
        out = ImageOps.solarize(image, v)
    else:
        out = {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize, "invert": ImageOps.invert}[name](
            image
        )
    return np.asarray(out).reshape(image_HWC.shape)


def drawn(policy: str, **key) -> list[list[tuple[str, float]]]:
    """What happens to each sample: (operation, parameter)."""
    return [
        [(OPERATIONS[number], v) for number, v in zip(*row, strict=True) if number >= 0]
        for row in zip(*(found.tolist() for found in draw(policy, **key)), strict=True)
    ]


def parameter(name: str, magnitude: int, sign: int, H: int, W: int) -> float:
    v = value(name, magnitude, H, W) * (sign if name in SIGNED else 1)
    return v + 1 if name in ENHANCE else v


def pictures(H: int, W: int, C: int) -> np.ndarray:
    """Awkward pictures: noise, low contrast, flat, two-valued, a ramp, one bright pixel."""
    rng = np.random.default_rng(H * 100 + W + C)
    noise = rng.integers(0, 256, (6, H, W, C), dtype=np.uint8)
    low = noise[:2] // 5 + 90
    flat = np.broadcast_to(rng.integers(0, 256, (3, 1, 1, C), dtype=np.uint8), (3, H, W, C)).copy()
    two = ((noise[2:4] > 128) * 200).astype(np.uint8)
    ramp = np.broadcast_to(np.linspace(3, 250, W)[None, None, :, None], (1, H, W, C)).astype(np.uint8)
    dot = np.zeros((1, H, W, C), dtype=np.uint8)
    dot[0, H // 2, W // 2] = 255
    return np.concatenate([noise, low, flat, two, ramp, dot])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("H", "W", "C"), [(32, 32, 3), (64, 64, 3), (28, 28, 1), (17, 33, 3), (5, 40, 3), (2, 2, 1)])
def test_operation_is_pillows(name, H, W, C):
    images = pictures(H, W, C)
    for magnitude in range(10):
        for sign in (-1, 1) if name in SIGNED else (1,):
            v = parameter(name, magnitude, sign, H, W)
            want = np.stack([pillow(image, name, v) for image in images])
            np.testing.assert_array_equal(apply(images, name, np.full(len(images), v)), want, err_msg=f"{name} {v}")


@settings(max_examples=60, deadline=None)
@given(st.floats(-40, 40), st.floats(-0.9, 0.9), st.integers(4, 40), st.integers(4, 40), st.integers(0, 2**31))
def test_any_matrix_takes_pillows_pixels(degrees, shear, H, W, seed):
    image = np.random.default_rng(seed).integers(0, 256, (1, H, W, 3), dtype=np.uint8)
    for name, v in (("rotate", degrees), ("shear-x", shear), ("shear-y", shear), ("translate-x", degrees / 3)):
        np.testing.assert_array_equal(
            apply(image, name, np.array([v]))[0], pillow(image[0], name, v), err_msg=f"{name} {v}"
        )


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 3), st.integers(0, 2**31))
def test_any_factor_blends_as_pillow(factor, seed):
    image = np.random.default_rng(seed).integers(0, 256, (1, 9, 8, 3), dtype=np.uint8)
    for name in ENHANCE:
        np.testing.assert_array_equal(apply(image, name, np.array([factor]))[0], pillow(image[0], name, factor), name)


def test_grey_of_every_sum_and_smooth_of_every_sum():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 16, 16, 3), dtype=np.uint8)
    want = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    np.testing.assert_array_equal(imageops.grey(images), want)
    want = np.stack([np.asarray(Image.fromarray(image).filter(ImageFilter.SMOOTH)) for image in images])
    np.testing.assert_array_equal(imageops.smooth(images), want)


@pytest.mark.parametrize("policy", ["cifar", "imagenet"])
def test_policy_is_pillow_image_by_image(policy):
    images = np.random.default_rng(1).integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
    images[::3] = images[::3] // 3 + 40
    index = np.arange(1000, 1400)
    got = autoaugment(images, policy, seed=5, epoch=2, index_N=index)
    steps = drawn(policy, seed=5, epoch=2, index_N=index, H=32, W=32)
    assert sum(map(len, steps)) > 300
    for image, todo, out in zip(images, steps, got, strict=True):
        for name, v in todo:
            image = pillow(image, name, v)
        np.testing.assert_array_equal(out, image, err_msg=str(todo))


def test_policies_have_25_subpolicies_and_the_papers_magnitudes():
    assert [len(POLICIES[name]) for name in ("cifar", "imagenet")] == [25, 25]
    # Table 7 and 9 of the paper, first and last rows.
    assert POLICIES["cifar"][0] == (("invert", 0.1, 7), ("contrast", 0.2, 6))
    assert POLICIES["cifar"][24] == (("translate-y", 0.7, 9), ("autocontrast", 0.9, 1))
    assert POLICIES["imagenet"][0] == (("posterize", 0.4, 8), ("rotate", 0.6, 9))
    assert POLICIES["imagenet"][24] == (("equalize", 0.8, 8), ("equalize", 0.6, 3))
    assert value("rotate", 9, 32, 32) == 30
    assert value("translate-x", 9, 32, 32) == pytest.approx(150 / 331 * 32)
    assert [value("posterize", m, 32, 32) for m in range(10)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert [value("solarize", m, 32, 32) for m in (0, 9)] == [256, 0]


def test_policy_draws_with_its_probabilities():
    steps = drawn("cifar", seed=0, epoch=0, index_N=np.arange(200_000), H=32, W=32)
    count: dict[str, int] = {}
    for todo in steps:
        for name, _ in todo:
            count[name] = count.get(name, 0) + 1
    for name in OPERATIONS:
        expected = sum(p for pair in POLICIES["cifar"] for n, p, _ in pair if n == name) / 25 * len(steps)
        assert count.get(name, 0) == pytest.approx(expected, abs=5 * expected**0.5 + 1), name
    signs = [v > 0 for todo in steps for name, v in todo if name == "rotate"]
    assert np.mean(signs) == pytest.approx(0.5, abs=0.03)
