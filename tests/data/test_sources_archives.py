import stat
import tarfile
import zipfile
from functools import partial

import pytest

from mpd_agl.data import archives
from mpd_agl.data.archives import unpack
from mpd_agl.errors import InputError
from tests.data.samplefiles import make_tar, make_zip, tar_of, tree, zip_of


@pytest.fixture
def sample(tmp_path):
    folder = tmp_path / "set"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "one.bin").write_bytes(bytes(range(256)) * 40)
    (folder / "two.txt").write_text("two")
    return folder


def file_info(name, **fields):
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def plain_tar_of(folder, archive):
    with tarfile.open(archive, "w") as pack:
        pack.add(folder, folder.name)
    return archive


@pytest.mark.parametrize("pack", [tar_of, zip_of, plain_tar_of])
def test_unpacks_every_file_with_its_content(sample, tmp_path, pack):
    archive = pack(sample, tmp_path / "s")
    out = unpack([archive], tmp_path / "out")
    assert tree(out) == {"set", "set/a", "set/a/one.bin", "set/two.txt"}
    assert (out / "set" / "a" / "one.bin").read_bytes() == bytes(range(256)) * 40
    assert tree(tmp_path) & {".out"} == set()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a\\..\\evil", "C:evil", "..\\evil"])
def test_a_member_that_leads_out_is_refused(tmp_path, name):
    for archive in (
        make_zip(tmp_path / "bad.zip", ("good", b"1"), (name, b"2")),
        make_tar(tmp_path / "bad.tar.gz", (file_info("good"), b"1"), (file_info(name), b"2")),
    ):
        (tmp_path / "deep").mkdir(exist_ok=True)
        before = tree(tmp_path)
        with pytest.raises(InputError, match=r"bad\.(zip|tar\.gz) holds the member .* leads out of its folder"):
            unpack([archive], tmp_path / "deep" / "out")
        assert tree(tmp_path) == before


def link_zip(path):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return make_zip(path, (info, "/etc/passwd"))


def link_tar(kind, path):
    return make_tar(path, (file_info("good"), b"1"), (file_info("x", type=kind, linkname="/etc"), b""))


LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


@pytest.mark.parametrize("make", [link_zip, *(partial(link_tar, kind) for kind in LINKS)])
def test_links_and_devices_are_refused(tmp_path, make):
    with pytest.raises(InputError, match="a link or a device"):
        unpack([make(tmp_path / "bad")], tmp_path / "out")
    assert tree(tmp_path) == {"bad"}


def test_bombs_are_stopped_by_ratio_size_and_number(tmp_path, monkeypatch):
    bomb = make_zip(tmp_path / "bomb.zip", ("zeros", bytes(24 << 20)))
    with pytest.raises(InputError, match=r"bomb.zip unpacks to more than 200 times its size"):
        unpack([bomb], tmp_path / "out")
    tar_bomb = make_tar(tmp_path / "bomb.tar.gz", (file_info("zeros"), bytes(24 << 20)))
    with pytest.raises(InputError, match="200 times"):
        unpack([tar_bomb], tmp_path / "out")
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        unpack([make_zip(tmp_path / "b.zip", ("x", bytes(2000)))], tmp_path / "out")
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    with pytest.raises(InputError, match="more than 3 members"):
        unpack([make_zip(tmp_path / "c.zip", *((str(i), b"") for i in range(4)))], tmp_path / "out")
    assert tree(tmp_path) == {"bomb.zip", "bomb.tar.gz", "b.zip", "c.zip"}


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.99])
def test_a_cut_archive_is_refused_and_leaves_nothing(sample, tmp_path, pack, keep):
    archive = pack(sample, tmp_path / "cut.bin")
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=r"cut\.bin"):
        unpack([archive], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_flipped_bit_in_a_member_is_found_by_its_checksum(sample, tmp_path):
    for pack, name in ((zip_of, "f.zip"), (tar_of, "f.tar.gz")):
        archive = pack(sample, tmp_path / name)
        content = bytearray(archive.read_bytes())
        content[len(content) // 3] ^= 0x10
        archive.write_bytes(content)
        with pytest.raises(InputError, match=name):
            unpack([archive], tmp_path / "out")


def test_a_missing_archive_and_a_member_given_twice(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*nothing\.zip"):
        unpack([tmp_path / "nothing.zip"], tmp_path / "out")
    archive = make_tar(tmp_path / "twice.tar.gz", (file_info("x"), b"1"), (file_info("x"), b"2"))
    with pytest.raises(InputError, match="'x' twice"):
        unpack([archive], tmp_path / "out")


def test_a_disk_that_fills_leaves_nothing(sample, tmp_path, monkeypatch):
    archive = zip_of(sample, tmp_path / "s.zip")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives, "_copy", full)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*out: No space left on device"):
        unpack([archive], tmp_path / "out")
    assert tree(tmp_path) == before


def test_an_existing_folder_is_left_as_it_is(sample, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    unpack([zip_of(sample, tmp_path / "s.zip")], tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "kept"
    assert not list(tmp_path.glob(".*"))
