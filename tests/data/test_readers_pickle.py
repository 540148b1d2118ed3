"""CIFAR's pickle files run only when their md5 is the published one."""

import os
import pickle
import struct

import numpy as np
import pytest

from mpd_agl.data import cifar
from mpd_agl.errors import InputError
from tests.data.samplefiles import pin


def write(path, content: bytes, *, pinned: bool = True):
    path.write_bytes(content)
    if pinned:
        pin(path)
    return path


def python2_pickle(module=b"numpy.core.multiarray", name=b"_reconstruct") -> bytes:
    """The instructions that Python 2 and NumPy 1 wrote into CIFAR's files: a 2x3 array of uint8 called `data`."""
    return (
        b"\x80\x02}U\x04datac" + module + b"\n" + name + b"\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        b"K\x01" + struct.pack("<BBBBB", 0x4B, 2, 0x4B, 3, 0x86) + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R("
        b"K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06" + bytes(range(6)) + b"tbs."
    )  # fmt: skip


def test_a_python2_pickle_is_read(tmp_path):
    back = cifar.read_pickle(write(tmp_path / "data_batch_1", python2_pickle()))
    np.testing.assert_array_equal(back[b"data"], np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert back[b"data"].dtype == np.uint8


class Call:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(("function", "args"), [(os.system, ("touch pwned",)), (eval, ("1",)), (print, ("x",))])
def test_code_does_not_run(tmp_path, monkeypatch, capsys, protocol, function, args, pinned):
    """Even a file with a known md5 builds nothing but arrays and plain data."""
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path / "data_batch_1", pickle.dumps({b"data": Call(function, *args)}, protocol=protocol), pinned=pinned
    )
    refusal = (pickle.UnpicklingError, "the name") if pinned else (InputError, "data_batch_1 .* was not opened")
    with pytest.raises(refusal[0], match=refusal[1]):
        cifar.read_pickle(path)
    assert [p.name for p in tmp_path.iterdir()] == ["data_batch_1"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("module", "name"), [(b"os", b"_reconstruct"), (b"numpy", b"load"), (b"numpy.core.multiarray", b"scalar")]
)
def test_no_other_name_is_looked_up(tmp_path, module, name):
    with pytest.raises(pickle.UnpicklingError, match=rf"the name {module.decode()}\.{name.decode()}"):
        cifar.read_pickle(write(tmp_path / "data_batch_1", python2_pickle(module, name)))


def test_a_changed_byte_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "_Unpickler", lambda *_, **__: pytest.fail("the pickle was opened"))
    whole = python2_pickle()
    path = write(tmp_path / "data_batch_1", whole)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InputError, match=r"data_batch_1 is damaged or not the official one \(its md5 is"):
            cifar.read_pickle(path)


def test_files_that_are_swapped_missing_or_too_large_are_named(tmp_path, monkeypatch):
    one = write(tmp_path / "data_batch_1", python2_pickle())
    (tmp_path / "test_batch").write_bytes(one.read_bytes())
    with pytest.raises(InputError, match=r"test_batch is .* \(it is data_batch_1, so files were swapped\)"):
        cifar.read_pickle(tmp_path / "test_batch")
    with pytest.raises(InputError, match=r"cannot read .*data_batch_2"):
        cifar.read_pickle(tmp_path / "data_batch_2")
    monkeypatch.setattr(cifar, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="bytes, more than any CIFAR file"):
        cifar.read_pickle(one)
