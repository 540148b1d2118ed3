"""`mpd-agl predict RUN image.png ...`: the classes of images, by the network of a run or a trained one by name."""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from mpd_agl.cli.arguments import FACTORY_HELP, PRETRAINED_HELP, Parser
from mpd_agl.cli.trained import load_trained
from mpd_agl.data.augment import normalise
from mpd_agl.errors import InputError
from mpd_agl.models import pretrained_card
from mpd_agl.train.early_exit import int8_network
from mpd_agl.train.losses import mean_output
from mpd_agl.train.runfolder import find_run

LARGEST = 64_000_000
"""Pixels of an image; a larger JPEG is decoded at a fraction of its size, anything else that large is refused."""
LIGHT_ON_DARK, DARK_ON_LIGHT = "light on dark", "dark on light"


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl predict",
        usage="mpd-agl predict (RUN | --pretrained NAME) IMAGE [IMAGE ...] [OPTIONS]",
        description="Classify images with a run's network, or with a trained one.",
    )
    p.add_argument(
        "paths", type=Path, nargs="+", metavar="IMAGE", help="PNG, JPEG, WebP, TIFF, ... of any size; a RUN before them"
    )
    p.add_argument("--pretrained", default="", metavar="NAME", help=PRETRAINED_HELP)
    p.add_argument("--top", type=int, default=5, help="classes to name per image (default 5)")
    p.add_argument("--weights", default="last", help="last: the result (default); best: best epoch on the test set")
    p.add_argument(
        "--invert",
        action=argparse.BooleanOptionalAction,
        help="exchange light and dark, or never do (default: where a dark drawing on a light ground meets a network "
        "that was trained on light ones on dark, or the reverse)",
    )
    p.add_argument(
        "--int8", action="store_true", help="hidden weights as 8-bit whole numbers: quicker, nearly the same"
    )
    p.add_argument("--factory", default="", metavar="MODULE:FACTORY", help=FACTORY_HELP)
    p.add_argument("--json", action="store_true", help="print JSON lines")
    return p


def run(argv: list[str]) -> int:
    """Classify and print."""
    a = parser().parse_args(argv)
    if a.top < 1:
        raise InputError(f"--top must be at least 1, got {a.top}.")
    if not a.pretrained and len(a.paths) < 2:
        raise InputError(
            f"predict takes a run folder and images, got only {a.paths[0]}. "
            "Write `mpd-agl predict RUN IMAGE`, or `mpd-agl predict --pretrained cifar10 IMAGE`."
        )
    images = a.paths if a.pretrained else a.paths[1:]

    folder = None if a.pretrained else find_run(a.paths[0])
    source = f"run {folder}" if folder else f"network {a.pretrained}"
    trained = load_trained(folder, pretrained=a.pretrained, weights=a.weights, factory=a.factory)
    facts = trained.record.data
    if "sample_shape" in facts["train"]:
        raise InputError(
            f"{source} was trained on samples of shape {tuple(facts['train']['sample_shape'])}, "
            "and predict takes images. Use `mpd-agl evaluate`."
        )
    if len(facts["shape"]) != 3:
        raise InputError(
            f"{source} was trained on event frames ({facts['name']}), and predict takes images. Use `mpd-agl evaluate`."
        )
    polarity = polarity_of_data(facts["mean"])
    read = [read_image(path, facts["shape"], polarity, a.invert) for path in images]
    x = torch.from_numpy(normalise(np.stack([x_HWC for x_HWC, _ in read]), facts["mean"], facts["std"]))
    net: torch.nn.Module = trained.net
    if a.int8:
        net = int8_network(trained.network, torch.device("cpu"))[0]
    with torch.no_grad():
        p_NK = mean_output(net(x.permute(0, 3, 1, 2))).softmax(1)
    if a.pretrained and not a.json:
        print(_about(a.pretrained))
    for path, (_, inverted), p_K in zip(images, read, p_NK, strict=True):
        best = p_K.topk(min(a.top, len(facts["classes"])))
        found = [(facts["classes"][k], v) for k, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        if a.json:
            classes = [{"name": n, "probability": v} for n, v in found]
            print(json.dumps({"image": str(path), "inverted": inverted, "classes": classes}))
            continue
        note = ""
        if inverted and a.invert is None:
            other = DARK_ON_LIGHT if polarity == LIGHT_ON_DARK else LIGHT_ON_DARK
            note = f" (light and dark exchanged: it looks {other}, {facts['name']} is {polarity}; or use --no-invert)"
        print(f"{path}{note}")
        longest = max(len(name) for name, _ in found)
        for name, share in found:
            print(f"  {name:{longest}}  {'#' * round(30 * share):30}  {100 * share:5.1f} %")
    return 0


def polarity_of_data(mean_C: list[float]) -> str | None:
    """Whether grey training images are mostly dark or mostly light; None for colours and for what lies between.

    >>> polarity_of_data([0.13]), polarity_of_data([0.9]), polarity_of_data([0.49, 0.48, 0.45])
    ('light on dark', 'dark on light', None)
    """
    if len(mean_C) != 1 or 1 / 3 <= mean_C[0] <= 2 / 3:
        return None
    return LIGHT_ON_DARK if mean_C[0] < 1 / 3 else DARK_ON_LIGHT


def read_image(path: Path, shape: list[int], polarity: str | None, invert: bool | None) -> tuple[Any, bool]:
    """An image as uint8 HWC of the network's size, and whether light and dark were exchanged.

    A picture with a ground (`polarity`) is padded to the network's shape with its ground; a photo loses what its longer
    side has too much of. `invert=None` decides by the ground of the image.
    """
    height, width, channels = shape
    plain = _open(path, "L" if channels == 1 else "RGB", (width, height))
    if plain.size == (width, height):
        shown = plain
    elif polarity is None:
        shown = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
    else:
        ground = int(np.median(_border(np.asarray(plain))))
        shown = ImageOps.pad(plain, (width, height), Image.Resampling.BILINEAR, color=ground)
    x_HWC = np.asarray(shown, dtype=np.uint8).reshape(height, width, channels)
    if invert is not None:
        return (255 - x_HWC if invert else x_HWC), invert
    if polarity is None or polarity_of_image(x_HWC) in (None, polarity):
        return x_HWC, False
    # The ground becomes the training data's black (or white) and the drawing's extreme its white (or black): paper on a
    # photo is grey, and a network that never saw a grey ground would take it for a drawing.
    paper = float(np.median(_border(x_HWC)))
    ink = float(x_HWC.min() if polarity == LIGHT_ON_DARK else x_HWC.max())
    drawn = np.clip((paper - x_HWC.astype(np.float64)) / (paper - ink), 0, 1)
    return np.rint(255 * (drawn if polarity == LIGHT_ON_DARK else 1 - drawn)).astype(np.uint8), True


def polarity_of_image(x_HWC: Any) -> str | None:
    """Which of light and dark is the ground: three quarters of the border lie on that side of the middle."""
    low, high = int(x_HWC.min()), int(x_HWC.max())
    if high - low < 8:  # an empty sheet has no drawing
        return None
    first, third = np.percentile(_border(x_HWC), [25, 75])
    middle = (low + high) / 2
    return DARK_ON_LIGHT if first > middle else LIGHT_ON_DARK if third < middle else None


def _border(x_HW: Any) -> Any:
    return np.concatenate([x_HW[0].ravel(), x_HW[-1].ravel(), x_HW[:, 0].ravel(), x_HW[:, -1].ravel()])


def _open(path: Path, mode: str, size: tuple[int, int]) -> "Image.Image":
    """The image the right way up, on white where it is transparent, as 8-bit grey or RGB."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images, which are handled here
            with Image.open(path) as image:
                if image.width * image.height > LARGEST:
                    image.draft(None, (4 * size[0], 4 * size[1]))
                if image.width * image.height > LARGEST:
                    raise InputError(
                        f"{path} has {image.width} x {image.height} pixels, more than {LARGEST:,}. Make it smaller."
                    )
                upright = ImageOps.exif_transpose(image)
                if upright.mode[0] in "IF":
                    return _from_deep(upright).convert(mode)
                if upright.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in upright.info:
                    rgba = upright.convert("RGBA")
                    upright = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
                return upright.convert(mode)
    except FileNotFoundError:
        raise InputError(f"no image at {path}: the file is not there. Check the path.") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no image that can be read ({error}). Give a PNG, JPEG or WebP file.") from None


def _about(pretrained: str) -> str:
    """What a trained network knows, in a line: its classes come from a data set of small images."""
    card = pretrained_card(pretrained)
    H, W, _ = card.shape
    score = 100 * card.check["stored"]["accuracy"]
    return (
        f"{card.name}: {len(card.classes)} classes, {score:.2f} % of {card.record['data']['name']}'s test set; "
        f"photos are read at {W} x {H} pixels"
    )


def _from_deep(image: "Image.Image") -> "Image.Image":
    """Whole numbers of 16 bits or floats as 8 bits; Pillow's own conversion would cut at 255."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    most = float(values.max())
    if image.mode.startswith("I"):
        most = max(65535.0, most)
    else:
        most = next((top for top in (1.0, 255.0, 65535.0) if most <= top), most)
    return Image.fromarray(np.rint(255 * np.clip(values / most, 0, 1)).astype(np.uint8))
