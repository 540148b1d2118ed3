import io
import os
import pickle
import struct

import numpy as np
import pytest

from mpd_agl.data import restricted
from mpd_agl.data.restricted import plain_from_bytes, read_plain_pickle
from mpd_agl.errors import InputError


def load(content: bytes):
    return plain_from_bytes(content, "some_batch")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_back_exactly(protocol):
    data = {
        b"data": np.arange(24, dtype=np.uint8).reshape(4, 6),
        b"labels": [1, 2, 3, -4, 2**40],
        "text": "ü",
        b"more": [None, True, 2.5, (1, b"x")],
        3: np.array([1.5, -2.0], np.float32),
    }
    back = load(pickle.dumps(data, protocol=protocol))
    assert list(back) == list(data)
    np.testing.assert_array_equal(back[b"data"], data[b"data"])
    assert back[b"data"].dtype == np.uint8
    assert back[b"labels"] == data[b"labels"]
    assert back["text"] == "ü"
    assert back[b"more"] == data[b"more"]
    np.testing.assert_array_equal(back[3], data[3])
    assert back[3].dtype == np.float32


def test_fortran_order_and_byte_order_are_kept():
    f, big = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(5, dtype=">i4")
    back = load(pickle.dumps([f, big], protocol=2))
    np.testing.assert_array_equal(back[0], f)
    assert back[1].tolist() == [0, 1, 2, 3, 4]


SIX_BYTES = bytes(range(6))


def python2_pickle(shape=(2, 3), content=SIX_BYTES, code=b"u1", module=b"numpy.core.multiarray") -> bytes:
    """The instructions that Python 2 and NumPy 1 wrote into CIFAR's files."""
    return (
        b"\x80\x02}U\x04datac" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        b"K\x01" + struct.pack("<BBBBB", 0x4B, shape[0], 0x4B, shape[1], 0x86) + b"cnumpy\ndtype\nU"
        + bytes([len(code)]) + code + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
        + bytes([len(content)]) + content + b"tbs."
    )  # fmt: skip


def test_a_python2_pickle_is_read():
    back = load(python2_pickle())
    np.testing.assert_array_equal(back[b"data"], np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": (2, 4)}, "do not fill its shape"),
        ({"code": b"O8"}, "type 'O8'"),
        ({"code": b"V6"}, "type 'V6'"),
        ({"code": b"S1"}, "type 'S1'"),
        ({"code": b"u1,O"}, "type 'u1,O'"),
        ({"module": b"os"}, "the name os._reconstruct"),
    ],
)
def test_arrays_of_anything_else_are_refused(change, reason):
    with pytest.raises(InputError, match=reason):
        load(python2_pickle(**change))


class Call:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(("function", "args"), [(os.system, ("touch pwned",)), (eval, ("1",)), (print, ("x",))])
def test_code_is_refused_and_does_not_run(tmp_path, monkeypatch, capsys, protocol, function, args):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="some_batch carries code or foreign objects"):
        load(pickle.dumps({b"data": Call(function, *args)}, protocol=protocol))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content",
    [
        b"(S'ls'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'ls'\no.",  # OBJ
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # NEWOBJ, even of an allowed name
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",  # STACK_GLOBAL
        b"\x80\x02\x82\x01.",  # EXT1
        b"Pid\n.",  # PERSID
        b"\x80\x04\x8f.",  # EMPTY_SET
        b"cbuiltins\neval\n.",
        b"c__main__\nx\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cmpd_agl.data.restricted\n_Array\n.",
    ],
)
def test_every_other_way_to_code_is_refused(content):
    with pytest.raises(InputError, match="carries code or foreign objects"):
        load(content)


def test_state_cannot_be_set_on_the_stand_ins():
    attack = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN}X\x05\x00\x00\x00_callK\x01s\x86b."
    with pytest.raises(InputError, match="carries code"):
        load(attack)
    with pytest.raises(InputError):
        load(b"\x80\x02cnumpy\nndarray\nN}X\x04\x00\x00\x00realK\x01s\x86b.")
    test_a_python2_pickle_is_read()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of 2^31 entries
        b"\x80\x02" + b"]" * 3000 + b"a" * 2999 + b".",  # nested lists
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"K\x01}.",  # tuples that share tuples
        b"\x80\x02cnumpy\ndtype\n.",  # a bare name
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.",  # an array without content
        b"\x80\x02B\xff\xff\xff\x7f.",  # a length beyond the end
        b"\x80\x02.",
        b"",
        b"\x00" * 10,
    ],
)
def test_malformed_pickles_are_refused_quickly(content):
    with pytest.raises(InputError, match="some_batch is damaged"):
        load(content)


def test_a_file_is_named(tmp_path):
    path = tmp_path / "data_batch_1"
    with pytest.raises(InputError, match=r"cannot read .*data_batch_1"):
        read_plain_pickle(path)
    path.write_bytes(pickle.dumps({"a": 1})[:-3])
    with pytest.raises(InputError, match=r"data_batch_1 is damaged"):
        read_plain_pickle(path)


def test_a_file_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(restricted, "MAX_BYTES", 10)
    (tmp_path / "big").write_bytes(bytes(11))
    with pytest.raises(InputError, match="has 11 bytes, more than any CIFAR file"):
        read_plain_pickle(tmp_path / "big")


def test_each_prefix_of_a_batch_is_refused_or_plain():
    out = io.BytesIO()
    pickle.dump({b"data": np.zeros((2, 8), np.uint8), b"labels": [1, 2]}, out, protocol=2)
    whole = out.getvalue()
    for end in range(len(whole)):
        with pytest.raises(InputError):
            load(whole[:end])
