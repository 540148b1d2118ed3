"""The embedded default: 5,000 real MNIST images, 500 per digit, in one PNG sheet inside the package.

The sheet shows the images in order, 100 across and 50 down, sorted by digit: five rows of images for each. Split:
within each digit every fifth image (positions 4, 9, 14, ...) is for testing, so 400 + 100 per digit, 4,000 + 1,000 in
all. The rule is fixed; no seed. `mnist5k-dvs` is the same digits before a simulated event camera.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mpd_agl.data.fileset import COUNTS, NO_MEAN, Recordings
from mpd_agl.data.options import FrameOptions, ImageOptions
from mpd_agl.data.types import ArraySet, DataSet, EventStream, LoadOptions
from mpd_agl.errors import InputError

FILE = Path(__file__).parent / "embedded" / "mnist5k.png"
COLUMNS, ROWS, SIDE = 100, 50, 28
PIXELS_SHA256 = "2913c6b6527114b7307e1086335a7665e3f94c74aba3d67525e6f116bf5ae20f"
"""sha256 of all 5,000 images, in order."""
CAMERA_SEED = 0
"""mnist5k-dvs is one fixed data set: the seed of a run does not change it."""


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


def read(split: str, options: LoadOptions) -> ArraySet:
    """The images of a split."""
    from mpd_agl.data.load import images_set

    index_N = split_index(split)
    x_NHWC = images()[index_N][..., None]
    provenance = {"source": "embedded", "partial": False, "sha256": hashlib.sha256(x_NHWC.tobytes()).hexdigest()}
    return images_set(MNIST5K, split, x_NHWC, labels()[index_N], provenance, options)


@dataclass(frozen=True, kw_only=True)
class Camera:
    """Records the i-th of the 5,000 images, so that a recording does not depend on the split."""

    images_NHW: NDArray[np.uint8]

    def __call__(self, index: int) -> EventStream:
        """Record one image."""
        from mpd_agl.data.dvs import simulate

        return simulate(self.images_NHW[index], seed=CAMERA_SEED, index=index)


def recordings(split: str) -> Recordings:
    """The simulated recordings of a split."""
    index_N = split_index(split)
    return Recordings(
        items=index_N.tolist(),
        y_N=labels()[index_N],
        classes=MNIST5K.classes,
        read_one=Camera(images_NHW=images()),
        origin="mnist5k-dvs",
        facts={"camera_seed": CAMERA_SEED},
    )


def read_frames(split: str, options: LoadOptions) -> ArraySet:
    """The frames of a split."""
    from mpd_agl.data.load import frames_set

    provenance = {"source": "embedded, simulated camera", "partial": False}
    return frames_set(MNIST5K_DVS, split, recordings(split), f"mnist5k-dvs-{CAMERA_SEED}-{split}", provenance, options)


MNIST5K = DataSet(
    name="mnist5k",
    title="MNIST, 5,000 images, embedded",
    read=read,
    options=ImageOptions,
    shape=(28, 28, 1),
    classes=tuple("0123456789"),
    counts={"train": 4000, "test": 1000},
    mean=(0.1311,),
    std=(0.3083,),
    licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
)

MNIST5K_DVS = DataSet(
    name="mnist5k-dvs",
    title="mnist5k before a simulated event camera",
    kind="events",
    read=read_frames,
    options=FrameOptions,
    shape=(34, 34, 2),
    classes=MNIST5K.classes,
    counts=MNIST5K.counts,
    mean=NO_MEAN,
    std=COUNTS,
    licence=MNIST5K.licence,
)
