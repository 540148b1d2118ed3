"""Images per second of the full pipeline (crop, flip, AutoAugment, normalise) on one core, against Pillow.

    python benchmarks/augment.py

Both do the same work: Pillow applies, image by image, the operations that the batched code drew, and every pixel must
agree. The two alternate in one run; medians are printed. The target is 8,000 images/s.
"""

import argparse
import json
import os
import platform
import statistics
import time

import numpy as np
import PIL
from PIL import Image, ImageEnhance, ImageOps

from mpd_agl.data.augment import Augmentation, Key, normalise
from mpd_agl.data.autoaugment import draw
from mpd_agl.data.imageops import OPERATIONS

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TARGET = 8000
GREY = (128, 128, 128)
PILLOW = {
    "shear-x": lambda im, v: im.transform(im.size, Image.Transform.AFFINE, (1, v, 0, 0, 1, 0), fillcolor=GREY),
    "shear-y": lambda im, v: im.transform(im.size, Image.Transform.AFFINE, (1, 0, 0, v, 1, 0), fillcolor=GREY),
    "translate-x": lambda im, v: im.transform(im.size, Image.Transform.AFFINE, (1, 0, v, 0, 1, 0), fillcolor=GREY),
    "translate-y": lambda im, v: im.transform(im.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, v), fillcolor=GREY),
    "rotate": lambda im, v: im.rotate(v, fillcolor=GREY),
    "color": lambda im, v: ImageEnhance.Color(im).enhance(v),
    "contrast": lambda im, v: ImageEnhance.Contrast(im).enhance(v),
    "brightness": lambda im, v: ImageEnhance.Brightness(im).enhance(v),
    "sharpness": lambda im, v: ImageEnhance.Sharpness(im).enhance(v),
    "posterize": lambda im, v: ImageOps.posterize(im, int(v)),
    "solarize": lambda im, v: ImageOps.solarize(im, v),
    "autocontrast": lambda im, v: ImageOps.autocontrast(im),
    "equalize": lambda im, v: ImageOps.equalize(im),
    "invert": lambda im, v: ImageOps.invert(im),
}


def pillow_pipeline(x: np.ndarray, epoch: int, index: np.ndarray) -> np.ndarray:
    """The usual way: crop and flip, one image at a time through Pillow, then float32. (Drawing is not in its time.)"""
    size = x.shape[1]
    out = np.empty(x.shape, np.float32)
    scale, shift = 1 / (255 * np.array(STD, np.float32)), np.array(MEAN, np.float32) / np.array(STD, np.float32)
    for i, (image, shift_yx, mirrored, steps) in enumerate(zip(x, *DRAWN[epoch], strict=True)):
        pil = Image.fromarray(image)
        pil = ImageOps.expand(pil, border=4, fill=0).crop(
            (shift_yx[1], shift_yx[0], shift_yx[1] + size, shift_yx[0] + size)
        )
        if mirrored:
            pil = pil.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for name, value in steps:
            pil = PILLOW[name](pil, value)
        out[i] = np.asarray(pil) * scale - shift
    return out


DRAWN: dict[int, tuple[list, list, list]] = {}


def draw_for_pillow(epoch: int, index: np.ndarray, size: int) -> None:
    """Find what our steps draw for an epoch, so that Pillow can do the same."""
    key = Key(seed=0, epoch=epoch, index_N=index)
    shift = (key.uniform("crop", 2) * 9).astype(int)
    mirrored = key.uniform("flip", 1)[:, 0] < 0.5
    drawn = draw("cifar", seed=0, epoch=epoch, index_N=index, H=size, W=size)
    steps = [
        [(OPERATIONS[number], value) for number, value in zip(*row, strict=True) if number >= 0]
        for row in zip(*(found.tolist() for found in drawn), strict=True)
    ]
    DRAWN[epoch] = (shift.tolist(), mirrored.tolist(), steps)


def pictures(n: int, size: int) -> np.ndarray:
    """Smooth colour pictures with noise: histograms like photographs'."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(20, 236, (n, 5, 5, 3)).astype(np.uint8)
    smooth = np.stack([np.asarray(Image.fromarray(c).resize((size, size), Image.Resampling.BICUBIC)) for c in coarse])
    return np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=5, help="batches per measurement")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    count = arguments.batch_size * arguments.batches
    x, index = pictures(count, arguments.size), np.arange(count)
    ours = Augmentation(("crop=4", "flip", "autoaugment=cifar"), MEAN)

    def run_ours(epoch: int) -> list[np.ndarray]:
        parts = []
        for start in range(0, count, arguments.batch_size):
            part = slice(start, start + arguments.batch_size)
            parts.append(normalise(ours(x[part], seed=0, epoch=epoch, index_N=index[part]), MEAN, STD))
        return parts

    times: dict[str, list[float]] = {"ours": [], "pillow": []}
    for epoch in range(arguments.rounds + 1):
        draw_for_pillow(epoch, index, arguments.size)
        start = time.perf_counter()
        a = run_ours(epoch)
        middle = time.perf_counter()
        b = pillow_pipeline(x, epoch, index)
        end = time.perf_counter()
        np.testing.assert_allclose(np.concatenate(a), b, atol=2e-6)
        if epoch:  # the first round warms up
            times["ours"].append(middle - start)
            times["pillow"].append(end - middle)
    rate = {name: count / statistics.median(values) for name, values in times.items()}
    record = {
        "images_per_second": {name: round(value) for name, value in rate.items()},
        "ratio": round(rate["ours"] / rate["pillow"], 2),
        "target": TARGET,
        "reached": rate["ours"] >= TARGET,
        "size": arguments.size,
        "batch_size": arguments.batch_size,
        "images_per_round": count,
        "rounds": arguments.rounds,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": 1,
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
