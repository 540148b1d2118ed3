import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mpd_agl.cli import main
from mpd_agl.data import show
from mpd_agl.data.load import load_dataset
from tests.data.samplefiles import tiny_cifar10, write_cifar10_python
from tests.data.test_sources_load import hashes


def run(capsys, *args):
    code = main(["data", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_verify_prints_counts_means_and_hashes(capsys, tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "c")
    found = hashes(x, y)
    tiny_cifar10(monkeypatch, **found)
    code, out, _ = run(capsys, "verify", "cifar10", "--data-dir", tmp_path / "c", "--cache-dir", tmp_path / "cache")
    assert code == 0
    assert "50 samples, 10 classes, 5 per class" in out
    mean = (x[:50] / 255).mean((0, 1, 2))
    assert f"mean ({mean[0]:.4f} {mean[1]:.4f} {mean[2]:.4f})" in out
    assert f"sha256 {found['sha256']['train']} (the official pixels)" in out
    assert run(capsys, "list", "--cache-dir", tmp_path)[0] == 0
    assert not (tmp_path / "cache" / "converted").exists()  # verify reads, it does not convert


def test_verify_of_the_cache_reads_every_pixel(capsys, tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "cache" / "downloads" / "cifar10" / "cifar-10-batches-py")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    args = ("cifar10", "--cache-dir", tmp_path / "cache")
    assert run(capsys, "fetch", *args)[0] == 0
    assert run(capsys, "verify", *args)[0] == 0
    pixels = tmp_path / "cache" / "converted" / "cifar10" / "train" / "pixels.u8"
    content = bytearray(pixels.read_bytes())
    content[77] ^= 1
    pixels.write_bytes(content)
    code, _, err = run(capsys, "verify", *args)
    assert code == 2
    assert "pixels.u8 is damaged" in err


def test_show_writes_a_sheet_of_images(capsys, tmp_path, monkeypatch):
    out = tmp_path / "new" / "sheet.png"
    assert run(capsys, "show", "mnist5k", "-o", out, "--cache-dir", tmp_path / "cache")[:2] == (0, f"{out}\n")
    sheet = np.asarray(Image.open(out))
    side = 28 * 3
    assert sheet.shape == (show.ROWS * (side + show.TEXT + 8) + 8, show.COLUMNS * (side + 8) + 8, 3)
    # The second cell of the first row is the first "1" of the training split.
    data = load_dataset("mnist5k", "train")
    first_one = np.kron(data.x[np.flatnonzero(data.y == 1)[0], ..., 0], np.ones((3, 3), np.uint8))
    x, y = 8 + side + 8, 8 + show.TEXT
    np.testing.assert_array_equal(sheet[y : y + side, x : x + side, 0], first_one)
    assert [p.name for p in out.parent.iterdir()] == ["sheet.png"]


def test_on_is_red_and_off_is_blue():
    frames = np.zeros((1, 1, 4, 4, 2), np.uint8)
    frames[0, 0, 1, 1, 1] = 3
    frames[0, 0, 2, 2, 0] = 3
    sheet = np.asarray(show.draw_strips(frames, ["x"]))[8 + show.TEXT :, 8:]
    assert sheet[2, 2].tolist() == [255, 0, 0]
    assert sheet[4, 4].tolist() == [0, 0, 255]
    assert sheet[4, 2].tolist() == [255, 255, 255]


def test_samples_are_spread_over_the_classes():
    y = np.repeat(np.arange(200), 3)
    chosen = show.pick(y, 60)
    assert len(set(y[chosen])) == 60
    assert y[chosen][0] == 0
    assert y[chosen][-1] == 199
    assert show.pick(np.array([0, 0, 1]), 10) == [0, 2, 1]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("fetch", "folder"), "there is nothing to fetch"),
        (("show", "mnist5k", "-o", "x.jpg"), "`show` writes PNG files, got x.jpg"),
        (("verify", "cifar10", "--data-dir", "/nowhere/at/all"), "there is no /nowhere/at/all"),
    ],
)
def test_mistakes_are_one_sentence(capsys, args, reason):
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "script",
    [
        "import mpd_agl.cli.data as d; d.parser().format_help(); assert not {'torch', 'numpy'} & set(sys.modules)",
        "from mpd_agl.data import load, verify, show; assert 'torch' not in sys.modules",
        "sys.modules.update(dict.fromkeys(('fcntl', 'resource', 'pwd', 'grp', 'termios', 'posix_ipc'))); "
        "import importlib, pkgutil, mpd_agl.data as d, mpd_agl.cli.data; "
        "[importlib.import_module(f'mpd_agl.data.{m.name}') for m in pkgutil.iter_modules(d.__path__)]",
    ],
    ids=["help needs nothing heavy", "loading needs no torch", "nothing that Windows lacks is imported"],
)
def test_imports(script):
    assert subprocess.run([sys.executable, "-c", f"import sys; {script}"], check=False).returncode == 0
