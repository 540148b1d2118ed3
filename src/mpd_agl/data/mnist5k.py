"""The embedded default: 5,000 real MNIST images, 500 per digit, in one PNG sheet inside the package.

The sheet shows the images in order, 100 across and 50 down, sorted by digit: five rows of images for each. Split:
within each digit every fifth image (positions 4, 9, 14, ...) is for testing, so 400 + 100 per digit, 4,000 + 1,000 in
all. The rule is fixed; no seed.
"""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mpd_agl.data.store import Pixels
from mpd_agl.errors import InputError

FILE = Path(__file__).parent / "embedded" / "mnist5k.png"
COLUMNS, ROWS, SIDE = 100, 50, 28
PIXELS_SHA256 = "2913c6b6527114b7307e1086335a7665e3f94c74aba3d67525e6f116bf5ae20f"
"""sha256 of all 5,000 images, in order."""


def labels() -> NDArray[np.int64]:
    """The digit of each image: 500 zeros, 500 ones, ..."""
    return np.repeat(np.arange(10), 500)


def decode(content: bytes) -> NDArray[np.uint8]:
    """Cut the sheet into images_NHW."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if image.size != (COLUMNS * SIDE, ROWS * SIDE) or image.mode != "L":
            raise ValueError(f"a {image.mode} sheet of {image.width}x{image.height}")
        sheet = np.asarray(image)
    return np.ascontiguousarray(sheet.reshape(ROWS, SIDE, COLUMNS, SIDE).transpose(0, 2, 1, 3)).reshape(-1, SIDE, SIDE)


def images() -> NDArray[np.uint8]:
    """All images_NHW, checked against their hash."""
    try:
        x_NHW = decode(FILE.read_bytes())
        good = hashlib.sha256(x_NHW.tobytes()).hexdigest() == PIXELS_SHA256
    except (OSError, ValueError, SyntaxError):
        good = False
    if not good:
        raise InputError(f"{FILE} is damaged or missing. Install the package again.")
    return x_NHW


def split_index(split: str) -> NDArray[np.int64]:
    """Which of the 5,000 belong to a split."""
    testing = np.arange(5000) % 5 == 4  # 500 is a multiple of 5, so the positions are the same within each digit
    return np.flatnonzero(testing if split == "test" else ~testing)


def read(classes: tuple[str, ...]) -> dict[str, Pixels]:
    """Both splits."""
    x_NHW, y_N = images(), labels()
    return {
        split: _split(x_NHW[index], y_N[index], classes)
        for split in ("train", "test")
        for index in [split_index(split)]
    }


def _split(x_NHW: NDArray[np.uint8], y_N: NDArray[np.int64], classes: tuple[str, ...]) -> Pixels:
    def parts() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        yield str(FILE), x_NHW[..., None]

    return Pixels(shape=(len(y_N), SIDE, SIDE, 1), y_N=y_N, classes=classes, parts=parts, origin=str(FILE))
