"""`mpd-agl predict RUN image.png ...`: classes of images, with the network of a run."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError

LARGEST = 64_000_000
"""Pixels of an image; more is refused before it is decoded."""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="mpd-agl predict", description="Classify images with a run's network.")
    p.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    p.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="PNG, JPEG, ... of any size")
    p.add_argument("--top", type=int, default=3, help="classes to name per image (default 3)")
    p.add_argument("--weights", default="last", help="last: the result (default); best: best epoch on the test set")
    p.add_argument("--invert", action="store_true", help="exchange light and dark (ink on paper, for the MNIST family)")
    p.add_argument("--json", action="store_true", help="print JSON lines")
    return p


def run(argv: list[str]) -> int:
    """Classify and print."""
    a = parser().parse_args(argv)
    if a.top < 1:
        raise InputError(f"--top must be at least 1, got {a.top}.")

    import numpy as np
    import torch

    from mpd_agl.data.augment import normalise
    from mpd_agl.runs.load_run import load_run
    from mpd_agl.train.losses import mean_output

    trained = load_run(a.run, a.weights, lambda text: print(f"mpd-agl: {text}", file=sys.stderr))
    facts = trained.record.data
    if len(facts["shape"]) != 3:
        raise InputError(
            f"run {a.run} was trained on event frames ({facts['name']}), and predict takes images. Use `mpd-agl evaluate`."
        )
    height, width, channels = facts["shape"]
    x_NHWC = np.stack([read_image(path, height, width, channels, a.invert) for path in a.images])
    x = torch.from_numpy(normalise(x_NHWC, facts["mean"], facts["std"])).permute(0, 3, 1, 2)
    with torch.no_grad():
        p_NK = mean_output(trained.net(x)).softmax(1)
    for path, p_K in zip(a.images, p_NK, strict=True):
        best = p_K.topk(min(a.top, len(facts["classes"])))
        found = [(facts["classes"][k], v) for k, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        if a.json:
            print(json.dumps({"image": str(path), "classes": [{"name": n, "probability": v} for n, v in found]}))
        else:
            print(f"{path}: " + ", ".join(f"{n} {100 * v:.1f} %" for n, v in found))
    return 0


def read_image(path: Path, height: int, width: int, channels: int, invert: bool) -> Any:
    """An image as uint8 HWC of the network's size; transparent parts are black."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.width * image.height > LARGEST:
                raise InputError(
                    f"{path} has {image.width} x {image.height} pixels, more than {LARGEST:,}. Make it smaller."
                )
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                rgba = image.convert("RGBA")
                shown = Image.alpha_composite(Image.new("RGBA", rgba.size, (0, 0, 0, 255)), rgba)
            else:
                shown = image.copy()
            plain = shown.convert("L" if channels == 1 else "RGB")
    except FileNotFoundError:
        raise InputError(f"no image at {path}: the file is not there.") from None
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} is no image that can be read ({error}). Give a PNG or JPEG file.") from None
    if plain.size != (width, height):
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    x_HWC = np.asarray(plain, dtype=np.uint8).reshape(height, width, channels)
    return 255 - x_HWC if invert else x_HWC
