"""A PNG with labelled samples: a sheet of images, or strips of frames for event data (ON red, OFF blue)."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mpd_agl.data import mnist5k, registry
from mpd_agl.data.atomic import disk_errors, whole_file
from mpd_agl.data.fileset import FileSet, Recordings
from mpd_agl.data.framing import build_frames
from mpd_agl.data.load import open_files
from mpd_agl.data.types import ArraySet, FrameConfig, LoadOptions

COLUMNS, ROWS = 10, 6
STRIPS, STEPS = 6, 10
FRAMES = FrameConfig(num_steps=STEPS, slicing="time", mode="count", size=48)
TEXT = 14  # pixels for a label


def show(name: str, out: Path, *, split: str, options: LoadOptions) -> None:
    """Write the picture; samples are spread evenly over the classes."""
    spec = registry.get(name)
    if spec is mnist5k.MNIST5K_DVS:
        sheet = _recording_strips(mnist5k.recordings(split))
    elif spec.kind == "events" and isinstance(spec, FileSet):
        splits = open_files(spec, options).splits
        sheet = _recording_strips(splits.get(split) or splits["all"])
    else:
        data = spec.load(split, replace(options, frames=FRAMES))
        sheet = frame_strips(data) if data.x.ndim == 5 and data.x.shape[-1] == 2 else image_sheet(data)
    with disk_errors(out), whole_file(out) as file:
        sheet.save(file, "PNG")


def pick(y_N: NDArray[np.int64], count: int) -> list[int]:
    """The first samples of evenly spaced classes, then the second ones, and so on."""
    classes = np.unique(y_N)
    wanted = classes[np.linspace(0, len(classes) - 1, min(len(classes), count)).round().astype(int)]
    places = [np.flatnonzero(y_N == c) for c in wanted]
    chosen = [int(p[turn]) for turn in range(count) for p in places if turn < len(p)]
    return chosen[:count]


def _label(draw: ImageDraw.ImageDraw, x: int, y: int, text: str, width: int) -> None:
    while text and draw.textlength(text) > width:
        text = text[:-1]
    draw.text((x, y), text, fill=(20, 20, 20))


def image_sheet(data: ArraySet) -> Image.Image:
    """Ten columns of images, each under its label; of a sequence of frames the first."""
    height, width, channels = data.x.shape[-3:]
    scale = max(1, 84 // height)
    chosen = pick(data.y, COLUMNS * ROWS)
    cell_w, cell_h = width * scale + 8, height * scale + TEXT + 8
    sheet = Image.new("RGB", (COLUMNS * cell_w + 8, -(-len(chosen) // COLUMNS) * cell_h + 8), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for k, i in enumerate(chosen):
        x, y = 8 + k % COLUMNS * cell_w, 8 + k // COLUMNS * cell_h
        image_HWC = np.asarray(data.x[i] if data.x.ndim == 4 else data.x[i, 0])
        image = Image.fromarray(image_HWC if channels == 3 else image_HWC[..., 0])
        _label(draw, x, y, data.classes[int(data.y[i])], width * scale)
        sheet.paste(
            image.convert("RGB").resize((width * scale, height * scale), Image.Resampling.NEAREST), (x, y + TEXT)
        )
    return sheet


def frame_strips(data: ArraySet) -> Image.Image:
    """One row of frames per sample."""
    chosen = pick(data.y, STRIPS)
    return draw_strips(np.asarray(data.x[chosen]), [data.classes[int(data.y[i])] for i in chosen])


def _recording_strips(recordings: Recordings) -> Image.Image:
    """One row of frames per recording; only the recordings shown are read."""
    read = recordings.take(np.array(pick(recordings.y_N, STRIPS)))
    with TemporaryDirectory() as scratch:
        frames = build_frames(read, len(read), FRAMES, Path(scratch), key="show", progress=False)
        frames_NTHWC = np.array(frames)  # a copy, because the folder is removed
        del frames
    return draw_strips(frames_NTHWC, [read.classes[y] for y in read.y_N])


def draw_strips(frames_NTHWC: NDArray[np.uint8], labels: list[str]) -> Image.Image:
    """Frames side by side on white; ON (channel 1) towards red, OFF (channel 0) towards blue."""
    n, steps, height, width, _ = frames_NTHWC.shape
    scale = 2
    cell_w, cell_h = width * scale + 4, height * scale + TEXT + 8
    sheet = Image.new("RGB", (steps * cell_w + 12, n * cell_h + 8), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for row in range(n):
        y = 8 + row * cell_h
        _label(draw, 8, y, labels[row], steps * cell_w)
        counts = frames_NTHWC[row][frames_NTHWC[row] > 0]
        top = max(1.0, float(np.percentile(counts, 95))) if len(counts) else 1.0
        for t in range(steps):
            off_HW, on_HW = (np.clip(frames_NTHWC[row, t, ..., c] / top, 0, 1) for c in (0, 1))
            rgb = 255 * np.stack([1 - off_HW, 1 - np.maximum(off_HW, on_HW), 1 - on_HW], -1)
            frame = Image.fromarray(rgb.astype(np.uint8)).resize(
                (width * scale, height * scale), Image.Resampling.NEAREST
            )
            x = 8 + t * cell_w
            sheet.paste(frame, (x, y + TEXT))
            draw.rectangle((x, y + TEXT, x + width * scale - 1, y + TEXT + height * scale - 1), outline=(200, 200, 200))
    return sheet
