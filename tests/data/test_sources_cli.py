import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mpd_agl.cli import main
from mpd_agl.data import dvs, show
from mpd_agl.data.load import load_dataset
from mpd_agl.data.verify import verify
from tests.data.samplefiles import tiny_cifar10, write_cifar10_binary, write_cifar10_python
from tests.data.test_sources_load import hashes


def run(capsys, *args):
    code = main(["data", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_list_names_every_set_and_its_state(capsys, tmp_path):
    code, out, _ = run(capsys, "list", "--cache-dir", tmp_path)
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(lines) >= {
        *("mnist5k", "mnist5k-dvs", "cifar10", "cifar100", "tinyimagenet", "cifar10dvs", "nmnist", "mnist"),
        "fashion-mnist",
    }
    assert "embedded" in lines["mnist5k"]
    assert "50,000 + 10,000" in lines["cifar10"]
    assert "to fetch" in lines["cifar10"]
    assert "by hand" in lines["nmnist"]
    (tmp_path / "converted" / "cifar10").mkdir(parents=True)
    assert "in the cache" in next(
        x for x in run(capsys, "list", "--cache-dir", tmp_path)[1].splitlines() if "cifar10 " in x
    )


def test_verify_prints_counts_means_and_hashes(capsys, tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "c")
    found = hashes(x, y)
    tiny_cifar10(monkeypatch, **found)
    code, out, _ = run(capsys, "verify", "cifar10", "--data-dir", tmp_path / "c", "--cache-dir", tmp_path / "cache")
    assert code == 0
    assert "50 samples, 10 classes, 5 per class" in out
    assert "10 samples, 10 classes, 1 per class" in out
    mean = (x[:50] / 255).mean((0, 1, 2))
    assert f"mean ({mean[0]:.4f} {mean[1]:.4f} {mean[2]:.4f})" in out
    assert f"sha256 {found['sha256']['train']} (the official pixels)" in out
    assert out.endswith("complete\n")
    assert not (tmp_path / "cache" / "converted").exists()  # verify reads, it does not convert


def test_a_partial_set_is_refused_by_verify_and_taken_when_allowed(capsys, tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, per_batch=20)
    args = ("verify", "cifar10", "--data-dir", tmp_path / "c", "--cache-dir", tmp_path / "cache")
    code, _, err = run(capsys, *args)
    assert code == 2
    assert "50 of 100 train samples, 10 of 20 test samples" in err
    code, out, _ = run(capsys, *args, "--allow-partial")
    assert code == 0
    assert "50 of 100 (partial) samples" in out
    assert out.endswith("partial: taken because --allow-partial was given\n")


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


def test_verify_mnist5k(capsys):
    code, out, _ = run(capsys, "verify", "mnist5k")
    assert code == 0
    assert "4,000 samples, 10 classes, 400 per class" in out
    assert "mean (0.1311)" in out
    assert verify("mnist5k-dvs").splits["train"].count == 4000


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


def test_show_writes_strips_of_frames(capsys, tmp_path, monkeypatch):
    recorded = []
    simulate = dvs.simulate
    monkeypatch.setattr(dvs, "simulate", lambda *a, **k: recorded.append(k["index"]) or simulate(*a, **k))
    out = tmp_path / "strip.png"
    assert run(capsys, "show", "mnist5k-dvs", "-o", out)[0] == 0
    assert len(recorded) == show.STRIPS  # only what is shown is recorded
    sheet = np.asarray(Image.open(out))
    assert sheet.shape[1] == show.STEPS * (48 * 2 + 4) + 12


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
        (("verify", "cifar"), "unknown data set 'cifar'"),
        (("verify", "nmnist", "--image-size", "14"), "unknown option of data set 'nmnist' 'image_size'"),
        (("fetch", "folder"), "there is nothing to fetch"),
        (("show", "mnist5k", "-o", "x.jpg"), "`show` writes PNG files, got x.jpg"),
        (("show", "mnist5k", "-o", "/dev/null/x.png"), "cannot write /dev/null/x.png"),
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


def test_show_says_what_it_put_into_the_cache(capsys, tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    options = ("--data-dir", tmp_path / "c", "--cache-dir", tmp_path / "cache", "-o", tmp_path / "a.png")
    code, out, err = run(capsys, "show", "cifar10", *options)
    (place,) = (tmp_path / "cache" / "converted").iterdir()
    assert (code, out) == (0, f"{tmp_path / 'a.png'}\n")
    size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) / 1e6
    assert 0.18 < size < 0.19  # 60 images of 3,072 bytes, labels and headers
    assert err == (
        f"mpd-agl: cifar10 was read once and is kept for training in {place} ({size:.1f} MB); remove it to free the "
        "space\n"
    )
    assert run(capsys, "show", "cifar10", *options)[2] == ""
