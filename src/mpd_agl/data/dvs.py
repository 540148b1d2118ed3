"""A small event camera: what a DVS sees while an image moves before it along a closed path.

Each pixel watches `L = log(floor + intensity)`. When L has moved by the pixel's threshold from the level the pixel
remembers, it sends an event (ON up, OFF down), is blind for the refractory time, and then remembers the level it
finds. The image moves by fractions of a pixel (bilinear sampling), L is linear in time within a step, and the step IS
the refractory time: a pixel fires at most once per step, so levels and times within the step are exact for that L.

The path is that of N-MNIST (Orchard et al. 2015): three saccades of 100 ms around a triangle, down-right, up-right,
left. In genuine N-MNIST recordings the leading edge of a digit sends OFF events, as a dark digit on a bright ground
does, so the negative is shown by default: with it the events of a digit, by pixel, polarity and saccade, correlate 0.87
with the genuine ones, without it 0.3.

What is not modelled: the lens, the sensor's bandwidth, bursts of neighbouring pixels, the screen's refresh, and the
arbiter that puts simultaneous events in a queue. docs/results/dvs-simulator.md has the comparison.

Shapes: H height and W width of the image, K steps, Y and X rows and columns of the sensor, E events.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.counter import uniform
from mpd_agl.data.types import EventStream
from mpd_agl.errors import InputError

DURATION_US = 308_000
_STREAM = 0xD5


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """The camera's few physical numbers; the defaults are fitted to N-MNIST's statistics."""

    threshold: float = 0.29
    """Change of log intensity that makes an event."""
    mismatch: float = 0.1
    """Spread of the threshold from pixel to pixel, as a share of it (fixed by the seed: one seed is one camera)."""
    floor: float = 0.05
    """Light of a black pixel as a share of a white one: the screen's black level and stray light."""
    refractory_us: int = 1500
    """Time a pixel is blind after an event; also the simulation's step."""
    noise_hz: float = 0.4
    """Events per second and pixel without any cause, half of them ON."""


DEFAULT_SENSOR = Sensor()


def path_K2(times_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the image's shift (x, y) in pixels at each time; the path ends where it began."""
    corners = np.array([[-3.0, -1.5], [-0.5, 3.5], [2.0, -1.5], [-3.0, -1.5]])
    shift: NDArray[np.float64] = np.tile(corners[0], (len(times_us), 1))
    for i in range(3):
        # Minimum jerk: the image rests, moves for 82 ms with a bell-shaped speed, and rests again.
        s = np.clip((times_us - (8_000 + 101_000 * i)) / 82_000, 0, 1)
        shift += (s**3 * (10 - 15 * s + 6 * s * s))[:, None] * (corners[i + 1] - corners[i])
    return shift


def simulate(
    image_HW: NDArray[np.uint8],
    *,
    seed: int,
    index: int,
    width: int = 34,
    height: int = 34,
    negative: bool = True,
    sensor: Sensor = DEFAULT_SENSOR,
) -> EventStream:
    """Record one image; the same (seed, index) gives the same events.

    The image is in the middle of the sensor, one image pixel per sensor pixel, on black; with `negative` light and
    dark are exchanged, background included. For a larger picture on a larger sensor, enlarge the image first.
    """
    H, W = image_HW.shape if image_HW.ndim == 2 else (0, 0)
    if image_HW.dtype != np.uint8 or not (0 < H <= height and 0 < W <= width):
        raise InputError(
            f"the event camera needs a grey uint8 image (H, W) of at most {height}x{width}, got {image_HW.dtype} "
            f"{image_HW.shape}. Convert it."
        )
    step = sensor.refractory_us
    times_K = np.arange(0, DURATION_US + step, step, dtype=np.float64)
    shift_K2 = path_K2(times_K)
    part = top, bottom, left, right = reach(image_HW, shift_K2, height, width)
    level_KYX = log_intensity(
        image_HW,
        shift_K2,
        height,
        width,
        sensor.floor,
        part,
        negative=negative,
    )
    # One seed is one camera, so its pixels' thresholds do not change between recordings.
    spread_YX = _normal(seed, height * width).reshape(height, width)[top:bottom, left:right] * sensor.mismatch
    threshold_YX = (sensor.threshold * np.clip(1 + spread_YX, 0.3, 3.0)).astype(np.float32)
    # The camera has looked at the resting image for a while, so the level that a pixel remembers is random.
    start_YX = uniform(seed, 1, np.array([index]), _STREAM, threshold_YX.size).reshape(threshold_YX.shape)
    reference_YX = level_KYX[0] + (start_YX.astype(np.float32) - np.float32(0.5)) * threshold_YX

    t, place, p = _cross(level_KYX, reference_YX, threshold_YX)
    cell = (place // (right - left) + top) * width + place % (right - left) + left
    noise_t, noise_cell, noise_p = _noise(seed, index, height * width, sensor.noise_hz)
    t_E = np.concatenate([np.minimum(np.floor(t * step), DURATION_US).astype(np.int64), noise_t])
    order = np.argsort(t_E, kind="stable")
    cell_E = np.concatenate([cell, noise_cell])[order]
    return EventStream(
        t_E=t_E[order],
        x_E=(cell_E % width).astype(np.uint16),
        y_E=(cell_E // width).astype(np.uint16),
        p_E=np.concatenate([p, noise_p])[order].astype(np.uint8),
        width=width,
        height=height,
    )


def reach(
    image_HW: NDArray[np.uint8], shift_K2: NDArray[np.float64], height: int, width: int
) -> tuple[int, int, int, int]:
    """Give the part of the sensor (top, bottom, left, right) that anything but background ever passes over."""
    edges = []
    for axis, size in ((1, height), (0, width)):
        lit = np.flatnonzero(image_HW.any(axis=axis))
        first, last = (int(lit[0]), int(lit[-1])) if len(lit) else (0, 0)
        origin = (size - image_HW.shape[1 - axis]) // 2
        low, high = shift_K2[:, axis].min(), shift_K2[:, axis].max()
        edges += [max(0, origin + first + int(np.floor(low))), min(size, origin + last + int(np.ceil(high)) + 1)]
    return edges[0], edges[1], edges[2], edges[3]


def log_intensity(
    image_HW: NDArray[np.uint8],
    shift_K2: NDArray[np.float64],
    height: int,
    width: int,
    floor: float,
    part: tuple[int, int, int, int],
    *,
    negative: bool = False,
) -> NDArray[np.float32]:
    """Give a part of the sensor's log intensity at each step: the image at its shift, sampled bilinearly."""
    H, W = image_HW.shape
    top, bottom, left, right = part
    margin = int(np.ceil(np.abs(shift_K2).max())) + 1
    canvas = np.zeros((height + 2 * margin, width + 2 * margin), dtype=np.float32)
    y, x = margin + (height - H) // 2, margin + (width - W) // 2
    canvas[y : y + H, x : x + W] = image_HW.astype(np.float32) / np.float32(255)
    if negative:
        canvas = 1 - canvas
    whole_K2 = np.floor(-shift_K2)
    fraction_K2 = (-shift_K2 - whole_K2).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(canvas, (bottom - top + 1, right - left + 1))
    x_K, y_K = (whole_K2.astype(np.int64) + margin).T
    tile = windows[y_K + top, x_K + left]
    fx, fy = fraction_K2[:, 0, None, None], fraction_K2[:, 1, None, None]
    rows = tile[:, 1:] - tile[:, :-1]
    rows *= fy
    rows += tile[:, :-1]
    out: NDArray[np.float32] = rows[:, :, 1:] - rows[:, :, :-1]
    out *= fx
    out += rows[:, :, :-1]
    out += np.float32(floor)
    return np.log(out, out=out)


def _cross(
    level_KYX: NDArray[np.float32], reference_YX: NDArray[np.float32], threshold_YX: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Find the threshold crossings: time in steps, pixel and polarity of each."""
    level_KP = level_KYX.reshape(len(level_KYX), -1)
    reference, threshold = reference_YX.reshape(-1).copy(), threshold_YX.reshape(-1)
    times, cells, polarities = [], [], []
    for k in range(len(level_KP) - 1):
        now, then = level_KP[k], level_KP[k + 1]
        moved = then - reference
        hit = np.flatnonzero(np.abs(moved) >= threshold)
        if len(hit) == 0:
            continue
        up = moved[hit] > 0
        goal = reference[hit] + np.where(up, threshold[hit], -threshold[hit])
        slope = then[hit] - now[hit]
        part = np.minimum(np.maximum((goal - now[hit]) / slope, 0), 1)  # only rounding can exceed these limits
        times.append(k + part.astype(np.float64))
        cells.append(hit)
        polarities.append(up)
        # The level one refractory time after the event is what the pixel remembers next.
        after = level_KP[min(k + 2, len(level_KP) - 1), hit]
        reference[hit] = then[hit] + part * (after - then[hit])
    if not times:
        return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(times), np.concatenate(cells), np.concatenate(polarities).astype(np.int64)


def _noise(
    seed: int, index: int, pixels: int, rate_hz: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw background events at random pixels and times; their expected number is rounded at random."""
    expected = rate_hz * DURATION_US * 1e-6 * pixels
    count = int(expected + uniform(seed, 2, np.array([index]), _STREAM, 1)[0, 0])
    u = uniform(seed, 3, np.array([index]), _STREAM, 3 * count).reshape(3, count)
    return (u[0] * DURATION_US).astype(np.int64), (u[1] * pixels).astype(np.int64), (u[2] < 0.5).astype(np.int64)


def _normal(seed: int, count: int) -> NDArray[np.float64]:
    """Draw standard normal numbers (Box and Muller)."""
    u = uniform(seed, 0, np.array([0]), _STREAM, 2 * count).reshape(2, count)
    normal: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-u[0])) * np.cos(2 * np.pi * u[1])
    return normal
