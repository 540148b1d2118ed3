"""The event camera: exact crossings for a known light, a closed path, determinism, N-MNIST's statistics."""

import numpy as np
import pytest

from mpd_agl.data.dvs import DURATION_US, Sensor, _cross, log_intensity, path_K2, reach, simulate
from mpd_agl.data.events import check_events
from mpd_agl.errors import InputError

QUIET = Sensor(mismatch=0.0, noise_hz=0.0)


def blob() -> np.ndarray:
    y, x = np.mgrid[0:28, 0:28]
    return (255 * np.exp(-((x - 14) ** 2 + (y - 13) ** 2) / 30)).astype(np.uint8)


def test_a_ramp_crosses_at_known_times():
    # L rises by 0.1 a step from 0; threshold 0.25, memory at 0: first event at 2.5 steps. Blind until 3.5, memory 0.35;
    # next at 0.6, 6.0 steps; blind until 7.0, memory 0.7; next at 0.95, 9.5 steps.
    level = (0.1 * np.arange(12, dtype=np.float32)).reshape(-1, 1, 1)
    t, place, p = _cross(level, np.zeros((1, 1), np.float32), np.full((1, 1), 0.25, np.float32))
    np.testing.assert_allclose(t, [2.5, 6.0, 9.5], atol=1e-5)
    assert p.tolist() == [1, 1, 1]
    t, _, p = _cross(-level, np.zeros((1, 1), np.float32), np.full((1, 1), 0.25, np.float32))
    np.testing.assert_allclose(t, [2.5, 6.0, 9.5], atol=1e-5)
    assert p.tolist() == [0, 0, 0]
    assert place.tolist() == [0, 0, 0]


def test_the_refractory_time_is_kept_and_a_change_below_threshold_is_silent():
    events = simulate(blob(), seed=0, index=0, sensor=QUIET)
    cell = events.y_E.astype(int) * 34 + events.x_E
    order = np.argsort(cell, kind="stable")
    gaps = np.diff(events.t_E[order])[np.diff(cell[order]) == 0]
    assert len(gaps) > 500
    assert gaps.min() >= QUIET.refractory_us - 1  # times are cut to whole microseconds
    dim = np.full((28, 28), 12, np.uint8)  # log(1.05) - log(1.05 - 12/255) = 0.046, far below 0.29/2
    assert len(simulate(dim, seed=0, index=0, sensor=QUIET)) == 0


def test_sampling_is_bilinear_and_shifts_the_way_the_path_says():
    image = blob()
    shift = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, -1.0], [0.5, 0.25]])
    light = np.exp(log_intensity(image, shift, 34, 34, 0.3, (0, 34, 0, 34))) - 0.3
    still = np.zeros((34, 34))
    still[3:31, 3:31] = image / 255
    np.testing.assert_allclose(light[0], still, atol=1e-6)
    np.testing.assert_allclose(light[1], np.roll(still, 2, axis=1), atol=1e-6)
    np.testing.assert_allclose(light[2], np.roll(still, -1, axis=0), atol=1e-6)
    half = 0.5 * still + 0.5 * np.roll(still, 1, axis=1)
    np.testing.assert_allclose(light[3], 0.75 * half + 0.25 * np.roll(half, 1, axis=0), atol=1e-6)


def test_the_part_within_reach_is_all_that_changes():
    image = np.zeros((28, 28), np.uint8)
    image[9:12, 15:19] = 200
    shift = path_K2(np.arange(0, 310_000, 1500.0))
    top, bottom, left, right = reach(image, shift, 34, 34)
    level = log_intensity(image, shift, 34, 34, 0.3, (0, 34, 0, 34))
    changes = np.ptp(level, axis=0) > 0
    outside = np.ones((34, 34), bool)
    outside[top:bottom, left:right] = False
    assert changes.any()
    assert not changes[outside].any()


def test_the_path_is_closed_and_slow():
    times = np.arange(0, DURATION_US + 1, 500.0)
    shift = path_K2(times)
    np.testing.assert_allclose(shift[0], shift[-1], atol=1e-9)
    assert np.abs(np.diff(shift, axis=0)).max() < 0.15  # pixels in half a millisecond
    assert np.ptp(shift, axis=0).tolist() == pytest.approx([5, 5], abs=0.01)


def test_the_leading_edge_of_the_negative_is_off():
    positive = simulate(blob(), seed=0, index=0, negative=False, sensor=QUIET)
    negative = simulate(blob(), seed=0, index=0, negative=True, sensor=QUIET)
    # Early on, the path goes down and right: a bright blob brightens the pixels below it, a dark one darkens them.
    for events, ahead in ((positive, 1), (negative, 0)):
        early = events.t_E < 50_000
        y_ahead = events.y_E[early & (events.p_E == ahead)].mean()
        y_behind = events.y_E[early & (events.p_E != ahead)].mean()
        assert y_ahead - y_behind > 2
    default = simulate(blob(), seed=0, index=0, sensor=QUIET)
    np.testing.assert_array_equal(default.t_E, negative.t_E)


def test_recordings_are_whole_and_repeatable():
    events = simulate(blob(), seed=1, index=7)
    check_events(events)
    assert events.t_E.dtype == np.int64
    assert events.t_E[-1] <= DURATION_US
    again = simulate(blob(), seed=1, index=7)
    for name in ("t_E", "x_E", "y_E", "p_E"):
        np.testing.assert_array_equal(getattr(events, name), getattr(again, name))
    others = [simulate(blob(), seed=1, index=8), simulate(blob(), seed=2, index=7)]
    assert all(len(o) != len(events) or (o.t_E != events.t_E).any() for o in others)
    # A closed path gives back what it took: as many ON as OFF.
    assert events.p_E.mean() == pytest.approx(0.5, abs=0.03)


def test_a_bigger_sensor_shows_the_same_in_the_middle():
    small = simulate(blob(), seed=0, index=0, sensor=QUIET)
    large = simulate(blob(), seed=0, index=0, width=64, height=48, sensor=QUIET)
    check_events(large)
    assert (large.width, large.height) == (64, 48)
    assert len(large) == pytest.approx(len(small), rel=0.03)
    assert large.x_E.mean() - small.x_E.mean() == pytest.approx(15, abs=0.3)
    assert large.y_E.mean() - small.y_E.mean() == pytest.approx(7, abs=0.3)


def test_noise_has_its_rate():
    events = simulate(np.zeros((28, 28), np.uint8), seed=0, index=0, sensor=Sensor(noise_hz=5.0))
    assert len(events) == pytest.approx(5.0 * 0.308 * 34 * 34, abs=1)
    assert np.abs(np.bincount(events.x_E, minlength=34) - len(events) / 34).max() < 5 * (len(events) / 34) ** 0.5


def test_bad_images_are_refused():
    with pytest.raises(InputError, match="grey uint8 image"):
        simulate(np.zeros((28, 28, 3), np.uint8), seed=0, index=0)
    with pytest.raises(InputError, match="at most 34x34"):
        simulate(np.zeros((40, 28), np.uint8), seed=0, index=0)
