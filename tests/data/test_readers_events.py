from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import recordings
from mpd_agl.data.event_sets import list_recordings
from mpd_agl.errors import InputError
from tests.data.samplefiles import events, same_events, write_aedat, write_bin

HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n# created Thu Dec 03 14:47:00 CET 2015\r\n"


def aedat_bytes(*pairs, header=HEADER):
    return header + b"".join(int(v).to_bytes(4, "big", signed=True) for pair in pairs for v in pair)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("count", [1, 7, 20_000])
def test_aedat_round_trip_is_exact(tmp_path, count, transpose):
    wrote = events(count, 128, seed=count, last=2**31 - 1)
    write_aedat(tmp_path / "r.aedat", wrote, transpose=transpose)
    assert same_events(recordings.read_aedat(tmp_path / "r.aedat", transpose=transpose), wrote)


def test_aedat_addresses_by_hand():
    """Bit 0: 0 is ON. Bits 1-7: 127 - x. Bits 8-14: y from the bottom. Big-endian."""
    address = (5 << 8) | (100 << 1) | 0
    content = aedat_bytes((address, 1000), ((127 << 8) | (0 << 1) | 1, 1001))
    assert content[len(HEADER) :][:8] == bytes([0, 0, 5, 200, 0, 0, 3, 232])
    got = recordings.decode_aedat(content, Path("x"))
    assert got.t_E.tolist() == [1000, 1001]
    assert got.x_E.tolist() == [127 - 100, 127]
    assert got.y_E.tolist() == [127 - 5, 0]
    assert got.p_E.tolist() == [1, 0]
    # As published loaders of CIFAR10-DVS have it: column = 127 - bits 8-14, row = 127 - bits 1-7.
    upright = recordings.decode_aedat(content, Path("x"), transpose=True)
    assert upright.x_E.tolist() == [127 - 5, 0]
    assert upright.y_E.tolist() == [127 - 100, 127]


def test_cifar10dvs_is_read_upright(tmp_path):
    (tmp_path / "c.aedat").write_bytes(aedat_bytes(((5 << 8) | (100 << 1), 7)))
    got = recordings.read_cifar10dvs(tmp_path / "c.aedat")
    assert (got.x_E[0], got.y_E[0], got.p_E[0]) == (122, 27, 1)


def test_special_events_are_left_out_before_order_is_checked():
    content = aedat_bytes((2, 10), (0x8000, 5), (4, 11))
    assert recordings.decode_aedat(content, Path("x")).t_E.tolist() == [10, 11]


def test_equal_times_are_in_order():
    assert len(recordings.decode_aedat(aedat_bytes((2, 10), (4, 10)), Path("x"))) == 2


@pytest.mark.parametrize(
    ("read", "content", "reason"),
    [
        (recordings.read_aedat, b"", "no AEDAT 2.0 file"),
        (recordings.read_aedat, aedat_bytes((2, 1), header=b""), "no AEDAT 2.0 file"),
        (recordings.read_aedat, aedat_bytes((2, 1), header=b"#!AER-DAT3.1\r\n"), "begins with b'#!AER-DAT3.1'"),
        (recordings.read_aedat, b"#!AER-DAT2.0\r\n# no end", "ends within its header"),
        (recordings.read_aedat, HEADER, "holds no event"),
        (recordings.read_aedat, aedat_bytes((0x8001, 1)), "holds no event"),
        (recordings.read_aedat, aedat_bytes((2, 1), (4, 2))[:-3], "is cut short: 13 bytes"),
        (recordings.read_aedat, aedat_bytes((2, 1), (0x10000, 2)), "event 1 has the address 0x00010000"),
        (recordings.read_aedat, aedat_bytes((-2, 1)), "event 0 has the address 0xfffffffe"),
        (
            recordings.read_aedat,
            aedat_bytes((2, 5), (2, 9), (2, 8)),
            "out of order: event 2",
        ),
        (recordings.read_bin, b"", "holds no event"),
        (recordings.read_bin, bytes(9), "is cut short: 9 bytes are no multiple of 5"),
        (recordings.read_bin, bytes([34, 0, 0, 0, 0]), "event 0 has x 34, out of range 0 to 33"),
        (recordings.read_bin, bytes([0, 0, 0, 0, 0, 1, 240, 0, 0, 0]), "event 1 has y 240, out of range 0 to 33"),
        (
            recordings.read_bin,
            bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 255]),
            "out of order: event 1",
        ),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path, read, content, reason):
    (tmp_path / "r.raw").write_bytes(content)
    with pytest.raises(InputError, match=r"r\.raw .*") as caught:
        read(tmp_path / "r.raw")
    assert reason in str(caught.value)


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_nmnist_round_trip_is_exact(tmp_path, count):
    wrote = events(count, 34, seed=count, last=2**23 - 1)
    write_bin(tmp_path / "r.bin", wrote)
    assert (tmp_path / "r.bin").stat().st_size == 5 * count
    assert same_events(recordings.read_bin(tmp_path / "r.bin"), wrote)


def test_nmnist_bytes_by_hand():
    got = recordings.decode_bin(bytes([3, 33, 0x81, 0x02, 0x03, 0, 1, 0x7F, 0xFF, 0xFF]), Path("x"))
    assert got.x_E.tolist() == [3, 0]
    assert got.y_E.tolist() == [33, 1]
    assert got.p_E.tolist() == [1, 0]
    assert got.t_E.tolist() == [0x010203, 0x7FFFFF]


@pytest.mark.parametrize("read", [recordings.read_aedat, recordings.read_bin])
def test_missing_and_huge_files(tmp_path, monkeypatch, read):
    with pytest.raises(InputError, match=r"gone .*No such file"):
        read(tmp_path / "gone")
    monkeypatch.setattr(recordings, "MAX_BYTES", 10)
    (tmp_path / "big").write_bytes(bytes(11))
    with pytest.raises(InputError, match="has 11 bytes, more than a recording"):
        read(tmp_path / "big")


def test_recordings_are_listed_by_class_and_number(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in (10, 2, 0):
            write_aedat(tmp_path / name / f"cifar10_{name}_{i}.aedat", events(i + 1, 128))
        (tmp_path / name / ".hidden.aedat").write_bytes(b"")
        (tmp_path / name / "notes.txt").write_text("")
    how = {"suffix": ".aedat", "read_one": recordings.read_aedat}
    found = list_recordings(tmp_path, classes=("dog", "cat"), **how)
    assert [p.stem for p in found.items[:3]] == ["cifar10_dog_0", "cifar10_dog_2", "cifar10_dog_10"]
    assert found.y_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert [len(found(i)) for i in range(6)] == [1, 3, 11, 1, 3, 11]
    some = found.take(np.array([5, 0]))
    assert (some.y_N.tolist(), len(some(0))) == ([1, 0], 11)
    with pytest.raises(InputError, match=r"cow holds no \.aedat file"):
        list_recordings(tmp_path, classes=("dog", "cow"), **how)
