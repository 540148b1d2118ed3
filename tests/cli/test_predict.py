"""`mpd-agl predict` on pictures as people have them: on transparent ground, photographed, of any size and format."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpd_agl.cli import main
from mpd_agl.cli.predict import DARK_ON_LIGHT, LIGHT_ON_DARK, polarity_of_image, read_image
from mpd_agl.data.load import load_dataset

SHAPE = [28, 28, 1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    options = ["--data.train-samples", "200", "--data.test-samples", "40"]
    options += ["--train.epochs", "2", "--train.batch-size", "20", "--monitor.every", "0", "--quiet"]
    assert main(["train", "--preset", "demo", *options, "--runs-dir", str(folder), "--name", "one"]) == 0
    return folder / "one"


@pytest.fixture(scope="module")
def digits_NHW() -> np.ndarray:
    return np.asarray(load_dataset("mnist5k", "test").x[:50, ..., 0])


def answers(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["predict", str(run), *words, "--json", "--top", "10"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dark_digit_on_a_transparent_ground_is_the_digit(run, digits_NHW, tmp_path, capsys):
    digit_HW = digits_NHW[3]
    black = np.zeros_like(digit_HW)
    Image.fromarray(np.stack([black, black, black, digit_HW], 2)).save(tmp_path / "clear.png")
    Image.fromarray(digit_HW).save(tmp_path / "plain.png")
    clear, plain = answers(capsys, run, str(tmp_path / "clear.png"), str(tmp_path / "plain.png"))
    assert (clear["inverted"], plain["inverted"]) == (True, False)
    assert clear["classes"] == plain["classes"]
    assert main(["predict", str(run), str(tmp_path / "clear.png"), str(tmp_path / "plain.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["--no-invert" in lines[0], "--no-invert" in lines[6]] == [True, False]
    assert lines[1:6] == lines[7:]


def test_the_options_overrule_the_guess(run, digits_NHW, tmp_path, capsys):
    Image.fromarray(255 - digits_NHW[3]).save(tmp_path / "ink.png")
    Image.fromarray(digits_NHW[3]).save(tmp_path / "plain.png")
    ink, plain = str(tmp_path / "ink.png"), str(tmp_path / "plain.png")
    (guessed,), (kept,) = answers(capsys, run, ink), answers(capsys, run, ink, "--no-invert")
    (forced,) = answers(capsys, run, plain, "--invert")
    assert [guessed["inverted"], kept["inverted"], forced["inverted"]] == [True, False, True]
    assert guessed["classes"] == answers(capsys, run, plain, "--no-invert")[0]["classes"]
    assert kept["classes"] == forced["classes"] != guessed["classes"]
    assert main(["predict", str(run), ink, "--invert"]) == 0
    assert capsys.readouterr().out.endswith(" %\n")


def test_the_guess_is_right_on_every_digit(digits_NHW):
    assert {polarity_of_image(d) for d in digits_NHW} == {LIGHT_ON_DARK}
    assert {polarity_of_image(255 - d) for d in digits_NHW} == {DARK_ON_LIGHT}
    assert polarity_of_image(np.full((28, 28), 200, np.uint8)) is None


def test_grey_paper_becomes_the_training_datas_ground(digits_NHW, tmp_path):
    """A photo: paper at 180, ink at 40."""
    photo = np.rint(180 - digits_NHW[3] / 255 * 140).astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    x_HWC, inverted = read_image(tmp_path / "photo.png", SHAPE, LIGHT_ON_DARK, None)
    assert inverted
    assert np.abs(x_HWC[..., 0].astype(int) - digits_NHW[3]).max() <= 1
    light = np.rint(60 + digits_NHW[3] / 255 * 140).astype(np.uint8)
    Image.fromarray(light).save(tmp_path / "light.png")
    x_HWC, inverted = read_image(tmp_path / "light.png", SHAPE, DARK_ON_LIGHT, None)
    assert inverted
    assert np.abs(x_HWC[..., 0].astype(int) - (255 - digits_NHW[3])).max() <= 1


FORMATS = {"png": "L RGB P 1", "jpg": "L RGB CMYK", "webp": "L RGB P", "bmp": "L RGB P 1", "gif": "L RGB P 1"}
FORMATS |= {"tif": "L RGB CMYK P 1", "ppm": "L RGB"}
CASES = [(f"a.{kind}", mode) for kind, modes in FORMATS.items() for mode in modes.split()]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_formats_and_modes(name, mode, digits_NHW, tmp_path):
    digit = Image.fromarray(digits_NHW[3]).resize((112, 112), Image.Resampling.NEAREST)
    digit.save(tmp_path / "grey.png")
    wanted, _ = read_image(tmp_path / "grey.png", SHAPE, LIGHT_ON_DARK, None)
    digit.convert(mode).save(tmp_path / name)
    x_HWC, inverted = read_image(tmp_path / name, SHAPE, LIGHT_ON_DARK, None)
    assert not inverted
    assert wanted.max() > 200
    # One bit per pixel is dithered: 16 pixels to one give 17 levels.
    assert np.abs(x_HWC.astype(int) - wanted).mean() < (4 if mode == "1" else 2)


def test_deep_pixels_are_not_cut(digits_NHW, tmp_path):
    wanted = digits_NHW[3]
    Image.fromarray(wanted.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    Image.fromarray((wanted / 255).astype(np.float32)).save(tmp_path / "float.tif")
    for name in ("sixteen.png", "float.tif"):
        x_HWC, _ = read_image(tmp_path / name, SHAPE, LIGHT_ON_DARK, None)
        assert np.array_equal(x_HWC[..., 0], wanted)


def test_a_photo_lying_on_its_side_is_turned(digits_NHW, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(digits_NHW[3]).copy()).save(tmp_path / "side.png", exif=exif)
    x_HWC, _ = read_image(tmp_path / "side.png", SHAPE, LIGHT_ON_DARK, None)
    assert np.array_equal(x_HWC[..., 0], digits_NHW[3])


def test_shapes_keep_their_proportions(digits_NHW, tmp_path):
    wide = np.full((28, 84), 255, np.uint8)
    wide[:, 28:56] = 255 - digits_NHW[3]
    Image.fromarray(wide).save(tmp_path / "wide.png")
    x_HWC, inverted = read_image(tmp_path / "wide.png", SHAPE, LIGHT_ON_DARK, None)
    assert inverted
    assert x_HWC[:9].max() == 0
    assert x_HWC[10:18, 10:18].max() > 100
    photo = np.zeros((30, 90, 3), np.uint8)
    photo[:, 30:60, 1] = 200
    Image.fromarray(photo).save(tmp_path / "photo.png")
    x_HWC, inverted = read_image(tmp_path / "photo.png", [10, 10, 3], None, None)
    assert not inverted
    assert np.array_equal(x_HWC[:, 1:-1], np.full((10, 8, 3), [0, 200, 0]))
    assert x_HWC[..., 1].min() > 150
    for size in ((1, 1), (1, 500), (3000, 2)):
        Image.new("RGB", size, (9, 9, 9)).save(tmp_path / "thin.png")
        assert read_image(tmp_path / "thin.png", [10, 10, 3], None, None)[0].max() == 9
        assert read_image(tmp_path / "thin.png", SHAPE, LIGHT_ON_DARK, None)[0].max() == 9


def test_a_photo_of_a_hundred_megapixels(tmp_path, monkeypatch):
    Image.new("RGB", (2000, 1500), (200, 0, 0)).save(tmp_path / "photo.jpg")
    Image.new("RGB", (2000, 1500), (200, 0, 0)).save(tmp_path / "photo.png")
    monkeypatch.setattr("mpd_agl.cli.predict.LARGEST", 1_000_000)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 2_000_000)
    x_HWC, _ = read_image(tmp_path / "photo.jpg", [32, 32, 3], None, None)
    assert np.abs(x_HWC.astype(int) - [200, 0, 0]).max() <= 2
    with pytest.raises(ValueError, match=r"2000 x 1500 pixels, more than 1,000,000. Make it smaller."):
        read_image(tmp_path / "photo.png", [32, 32, 3], None, None)


def test_the_newest_report_opens(run, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or True)
    page = run / "report.html"
    for name in ([], ["one"]):
        assert main(["runs", str(run.parent), "--open", *name]) == 0
    assert shown == [page.resolve().as_uri()] * 2
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    capsys.readouterr()
    assert main(["runs", str(run.parent), "--open"]) == 0
    assert str(page) in capsys.readouterr().out
    assert main(["runs", str(run.parent), "--open", "won"]) == 2
