"""`mpd-agl energy` as a user types it."""

import json

import pytest
import torch

from mpd_agl.cli import main
from mpd_agl.models import create_model, save_weights

SMALL = ["energy", "resnet19", "--width-mult", "0.0625", "--dataset-shape", "3,16,16", "--num-steps", "2"]


def test_json_adds_up(capsys):
    assert main([*SMALL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    layers = report["layers"]
    assert report["ann"]["macs"] == sum(r["macs"] for r in layers)
    paper = report["totals"]["paper"]
    assert paper["multiplies"] == 2 * (layers[0]["macs"] + layers[-1]["macs"])
    hidden = [r for r in layers if r["name"] not in ("stem", "readout")]
    assert paper["additions"] == pytest.approx(sum(r["rate_in"] * 2 * r["macs"] for r in hidden))
    assert paper["mj"] == pytest.approx((paper["additions"] * 0.9 + paper["multiplies"] * 4.6) * 1e-9)


def test_weights_from_a_file(capsys, tmp_path):
    torch.manual_seed(0)
    net = create_model("resnet19", width_mult=0.0625, image_size=16)
    file = tmp_path / "net.safetensors"
    save_weights(net, file)
    assert main([*SMALL, "--checkpoint", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rates_from"].startswith("weights net.safetensors, 8 random inputs")


def test_a_runs_own_network_and_test_data(capsys, tmp_path):
    train = ["train", "--preset", "demo", "--name", "r", "--runs-dir", str(tmp_path), "--quiet", "--train.epochs", "1"]
    small = ["--model.width_mult", "0.03125", "--data.train-samples", "100", "--data.test-samples", "50"]
    assert main([*train, *small]) == 0
    capsys.readouterr()
    run = str(tmp_path / "r")
    assert main(["energy", "cnn8", "--checkpoint", run, "--json", "--samples", "20"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rates_from"].endswith("20 test samples of mnist5k")
    assert report["layers"][0]["macs"] == 1 * 2 * 9 * 28 * 28
    assert main(["energy", "resnet19", "--checkpoint", run]) == 2
    assert "is a run of cnn8, got MODEL resnet19" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["energy", "resnet19", "--dataset-shape", "3,32,16"], "--dataset-shape must be square, got 32 x 16"),
        (["energy", "resnet19", "--checkpoint", "nowhere"], "no weights at nowhere"),
    ],
)
def test_bad_input_is_one_sentence_without_a_traceback(args, sentence, capsys):
    assert main(args) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
