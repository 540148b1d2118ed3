"""Events to frames by hand-counted examples, and what must be refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.data.events import slice_of_event, to_frames
from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError


def stream(t, x, y, p, width=34, height=34) -> EventStream:
    return EventStream(
        t_E=np.array(t, np.int64),
        x_E=np.array(x, np.uint16),
        y_E=np.array(y, np.uint16),
        p_E=np.array(p, np.uint8),
        width=width,
        height=height,
    )


def noise(count: int, width: int, height: int, seed: int = 0) -> EventStream:
    rng = np.random.default_rng(seed)
    return stream(
        np.sort(rng.integers(0, 300_000, count)),
        rng.integers(0, width, count),
        rng.integers(0, height, count),
        rng.integers(0, 2, count),
        width,
        height,
    )


def slow_frames(events: EventStream, config: FrameConfig) -> np.ndarray:
    """The definition, event by event."""
    frames = np.zeros((config.num_steps, config.size, config.size, 2), int)
    span = int(events.t_E[-1] - events.t_E[0]) + 1
    for i in range(len(events)):
        if config.slicing == "count":
            t = i * config.num_steps // len(events)
        else:
            t = int(events.t_E[i] - events.t_E[0]) * config.num_steps // span
        row, column = (
            int(events.y_E[i]) * config.size // events.height,
            int(events.x_E[i]) * config.size // events.width,
        )
        frames[t, row, column, events.p_E[i]] += 1
    return np.minimum(frames, 1 if config.mode == "binary" else 255).astype(np.uint8)


def test_four_events_by_hand():
    events = stream([10, 11, 12, 100], [0, 33, 5, 5], [0, 33, 6, 6], [0, 1, 1, 1])
    by_count = to_frames(events, FrameConfig(num_steps=2, size=34))
    assert by_count.shape == (2, 34, 34, 2)
    assert np.argwhere(by_count).tolist() == [[0, 0, 0, 0], [0, 33, 33, 1], [1, 6, 5, 1]]
    assert by_count[1, 6, 5, 1] == 2
    by_time = to_frames(events, FrameConfig(num_steps=2, size=34, slicing="time"))
    assert by_time[0].sum() == 3
    assert np.argwhere(by_time[1]).tolist() == [[6, 5, 1]]
    assert to_frames(events, FrameConfig(num_steps=1, size=34, mode="binary")).sum() == 3


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 12),
    st.integers(1, 60),
    st.sampled_from(["count", "time"]),
    st.sampled_from(["count", "binary"]),
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
    st.integers(0, 2**31),
)
def test_frames_are_the_definition(count, T, size, slicing, mode, sensor, seed):
    events = noise(count, *sensor, seed)
    config = FrameConfig(num_steps=T, size=size, slicing=slicing, mode=mode)
    np.testing.assert_array_equal(to_frames(events, config), slow_frames(events, config))


@pytest.mark.parametrize("size", [16, 34, 48, 128])
@pytest.mark.parametrize("slicing", ["count", "time"])
def test_no_event_is_lost_in_the_resize(size, slicing):
    events = noise(20_000, 128, 128)
    frames = to_frames(events, FrameConfig(size=size, slicing=slicing))
    assert frames.max() < 255
    assert frames.sum() == 20_000
    assert frames[..., 1].sum() == events.p_E.sum()


def test_counts_saturate():
    events = stream(np.arange(1000), [3] * 1000, [4] * 1000, [1] * 1000)
    frames = to_frames(events, FrameConfig(num_steps=1, size=34))
    assert frames[0, 4, 3, 1] == 255
    assert frames.sum() == 255


def test_slices_are_even():
    t = np.sort(np.random.default_rng(0).integers(0, 1000, 1003))
    by_count = np.bincount(slice_of_event(t, 10, "count"), minlength=10)
    assert by_count.max() - by_count.min() <= 1
    by_time = slice_of_event(t, 10, "time")
    edges = [(t[by_time == k].min() - t[0], t[by_time == k].max() - t[0]) for k in range(10)]
    assert all(high - low <= 100 for low, high in edges)
    assert by_time[-1] == 9
    assert slice_of_event(np.array([5, 5, 5]), 4, "time").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (stream([], [], [], []), "holds no event"),
        (stream([1, 2], [0, 34], [0, 0], [0, 1]), "event 1 has x 34, out of range 0 to 33"),
        (stream([1, 2], [0, 1], [99, 0], [0, 1]), "event 0 has y 99"),
        (stream([1, 2], [0, 1], [0, 0], [0, 2]), "event 1 has polarity 2"),
        (
            stream([1, 5, 4], [0, 1, 1], [0, 0, 0], [0, 1, 1]),
            "out of order: event 2",
        ),
        (stream([1, 2], [0], [0, 0], [0, 1]), "differ in length"),
    ],
)
def test_damaged_recordings_are_refused(events, message):
    with pytest.raises(InputError, match=message):
        to_frames(events, FrameConfig())
