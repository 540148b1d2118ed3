"""`examples/plugin`, installed as a user would install it: every command takes what it registers, by name."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpd_agl

ROOT = Path(__file__).parents[1]
SOURCE = Path(mpd_agl.__file__).parents[1]
SMALL = ["--train.epochs", "3", "--train.batch-size", "20", "--train.threads", "1", "--monitor.every", "5", "--quiet"]


def mpd_agl_command(*words: str, paths: list[Path], **environment: str) -> "subprocess.CompletedProcess[str]":
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | environment
    return subprocess.run(
        [sys.executable, "-m", "mpd_agl", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=surroundings,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the plugin into; it is built from a copy, so that no build files stay behind."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    words = [*pip, "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_commands_take_what_the_plugin_registers(installed: Path, tmp_path: Path) -> None:
    words = ["train", "--method", "mine", "--model.name", "two-layers", "--data.name", "stripes", *SMALL]
    words += ["--runs-dir", str(tmp_path), "--name", "plugged"]
    done = mpd_agl_command(*words, paths=[installed, SOURCE])
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "plugged" / "record.json").read_text())
    assert record["data"]["classes"] == ["horizontal", "vertical"]
    assert record["final"]["test_accuracy"] > 0.9
    done = mpd_agl_command("evaluate", str(tmp_path / "plugged"), "--json", paths=[installed, SOURCE])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["accuracy"] == record["final"]["test_accuracy"]


def test_entries_of_the_plugin_have_options_of_their_own(installed: Path, tmp_path: Path) -> None:
    words = ["train", "--method", "mine", "--model.name", "two-layers", "--data.name", "stripes", *SMALL]
    words += ["--model.reach", "3", "--model.stride", "1", "--data.noise", "0", "--runs-dir", str(tmp_path)]
    done = mpd_agl_command(*words, "--name", "own", "--train.epochs", "1", paths=[installed, SOURCE])
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "own" / "record.json").read_text())
    assert (record["config"]["model"]["reach"], record["config"]["model"]["stride"]) == (3.0, 1)
    assert record["config"]["data"]["noise"] == 0
    layers = json.loads((tmp_path / "own" / "metrics.jsonl").read_text().splitlines()[0])["layers"]
    assert layers["conv2"]["kappa_T"] != []
    for wrong, having in (("--model.stride=9", "stride"), ("--model.depth=3", "plain")):
        done = mpd_agl_command(*words, wrong, "--name", "wrong", paths=[installed, SOURCE])
        assert done.returncode == 2
        assert having in done.stderr
    done = mpd_agl_command("train", "--preset", "demo", "--model.reach", "3", paths=[installed, SOURCE])
    assert (done.returncode, "method mine" in done.stderr) == (2, True)


def test_the_surrogate_goes_with_any_method(installed: Path, tmp_path: Path) -> None:
    words = ["train", "--preset", "demo", "--method", "stbp-tdbn", "--model.surrogate", "cosine", *SMALL]
    words += ["--data.train-samples", "60", "--data.test-samples", "20", "--runs-dir", str(tmp_path), "--name", "one"]
    done = mpd_agl_command(*words, paths=[installed, SOURCE])
    assert done.returncode == 0, done.stderr


def test_without_the_plugin_its_names_are_unknown(installed: Path, tmp_path: Path) -> None:
    words = ["train", "--preset", "demo", "--method", "mine", "--runs-dir", str(tmp_path)]
    for paths, environment in (([SOURCE], {}), ([installed, SOURCE], {"MPD_AGL_PLUGINS": "0"})):
        done = mpd_agl_command(*words, paths=paths, **environment)
        assert done.returncode == 2
        assert "unknown method 'mine'" in done.stderr
    assert list(tmp_path.iterdir()) == []
