"""`mpd-agl diagnose module:factory`: exit codes, sentences, pictures."""

import json
import sys

import numpy as np
import pytest

from mpd_agl.cli import main

MODULE = """
import torch
from torch import nn
from mpd_agl.models import create_model

def healthy():
    return create_model("cnn8", in_channels=1, image_size=28, width_mult=0.125)

def sick():
    net = healthy()
    for k in (5, 6, 7):
        nn.init.constant_(net.get_submodule(f"conv{k}").norm.bias, -4.0)
    return net

def fails():
    raise KeyError("channels")

class Inner:
    build = staticmethod(healthy)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "some_net.py").write_text(MODULE)
    (tmp_path / "broken_net.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("some_net", "broken_net"):
        sys.modules.pop(name, None)


def test_exit_codes_table_and_picture(here, capsys):
    assert main(["diagnose", "some_net:healthy", "--samples", "8"]) == 0
    assert "no problem found" in capsys.readouterr().out
    assert main(["diagnose", "some_net:sick", "--samples", "8", "--plot", "ill.png"]) == 1
    assert "1. silent: from layer 5 (conv5) on" in capsys.readouterr().out
    assert (here / "ill.png").stat().st_size > 5000
    assert main(["diagnose", "some_net:Inner.build", "--samples", "8", "--num-steps", "2"]) == 0


def test_json_and_a_batch_of_ones_own(here, capsys):
    x = np.random.default_rng(0).standard_normal((6, 1, 28, 28)).astype(np.float32)
    np.savez("batch.npz", x=x, y=np.arange(6))
    assert main(["diagnose", "some_net:healthy", "--batch", "batch.npz", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is True
    assert [row["layer"] for row in told["layers"]] == [f"conv{k}" for k in range(1, 8)]
    np.savez("alone.npz", x=x)
    assert main(["diagnose", "some_net:healthy", "--batch", "alone.npz"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("os:abort", "'os' is a module of Python itself"),
        ("nowhere:build", "there is no module 'nowhere'"),
        ("broken_net:build", "the module broken_net failed with ZeroDivisionError: division by zero"),
        ("some_net:fails", "some_net:fails() failed with KeyError: 'channels'"),
        ("some_net:healthy --resize 14", "cnn8 takes images (N, 1, 28, 28)"),
        ("some_net:healthy --batch none.npz", "none.npz cannot be read"),
        ("some_net:healthy --batch labels.npz", "labels must be class numbers"),
    ],
)
def test_bad_input_is_one_sentence(here, capsys, arguments, sentence):
    x = np.zeros((4, 1, 28, 28), np.float32)
    np.savez("other.npz", z=x)
    np.savez("whole.npz", x=x.astype(np.uint8))
    np.savez("labels.npz", x=x, y=np.arange(4) + 8)
    assert main(["diagnose", *arguments.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in told.err
    assert len(told.err.strip().splitlines()) == 1
