"""Image files of any size and format as uint8 squares.

The shorter side is resized to the square's, and the middle is cut out. Transparent images are laid on white, 16-bit
ones lose their lower byte, and a camera's note which way is up is followed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mpd_agl.errors import InputError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 64 << 20
PART = 500
"""Images that are decoded before they are handed on; one class of Tiny-ImageNet's complete training set."""
_GREY = ("1", "L", "LA", "La")


@contextmanager
def opened(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open an image file; whatever is wrong with it becomes one sentence that names it."""
    try:
        with Image.open(path, formats=formats) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(
                    f"{path} is an image of {image.width}x{image.height} pixels, more than is decoded here. Shrink it."
                )
            yield image
    except InputError:
        raise
    except Exception as error:  # a damaged image can raise nearly anything
        kind = formats[0] if len(formats) == 1 else "image"
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).partition("\n")[0]
        raise InputError(
            f"{path} is no readable {kind} file ({reason[:80]}). Get the file again, or remove it."
        ) from error


def is_grey(image: Image.Image) -> bool:
    """Whether the image has no colours, by its header alone."""
    return image.mode in _GREY or image.mode.startswith("I")


def flatten(image: Image.Image, channels: int) -> Image.Image:
    """The image upright, without transparency, as 8-bit grey (1 channel) or RGB (3)."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        values_HW = np.asarray(image)
        if values_HW.min() < 0 or values_HW.max() > 65535:
            raise InputError(f"a grey image holds values from {values_HW.min()} to {values_HW.max()}, not 16 bits.")
        image = Image.fromarray((values_HW >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise InputError("an image of floating-point values has no fixed range. Save it with 8 or 16 bits.")
    elif "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` and cut out the middle."""
    return image if image.size == (size, size) else ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def read_square(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """Read one image file as (size, size, channels)."""
    with opened(path) as image:
        try:
            found = np.asarray(square(flatten(image, channels), size))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    return found.reshape(size, size, channels)


def file_parts(
    paths: Sequence[Path], read: Callable[[Path], NDArray[np.uint8]]
) -> Callable[[], Iterator[tuple[str, NDArray[np.uint8]]]]:
    """The images of many files in parts, as `store.Pixels` wants them."""

    def parts() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        # Decoding releases the interpreter lock, so threads share the work.
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(paths), PART):
                group = paths[start : start + PART]
                yield str(group[0].parent), np.stack(list(pool.map(read, group)))

    return parts
