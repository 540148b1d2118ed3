"""Trained networks by name, path and address: what is stored gives the same answers, what is wrong is refused."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from mpd_agl.cli import main
from mpd_agl.data.load import load_dataset
from mpd_agl.errors import InputError
from mpd_agl.models import create_model, list_pretrained, pretrained, pretrained_card
from mpd_agl.train.load_run import load_run
from mpd_agl.train.resolve import resolve
from mpd_agl.train.start_from import start_from
from tools import pretrained as tool


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    options = ["--data.train-samples", "600", "--train.epochs", "2", "--train.batch-size", "12"]
    options += ["--model.width-mult", "0.125", "--data.image-size", "14", "--monitor.every", "0", "--quiet"]
    assert main(["train", "--preset", "demo", *options, "--runs-dir", str(folder), "--name", "one"]) == 0
    return folder / "one"


@pytest.fixture(scope="module")
def card(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    box = tmp_path_factory.mktemp("box")
    tool.main([str(run), "digits", "--tolerance", "2", "--cards", str(box), "-o", str(box / "page.md")])
    return box / "digits.json"


def test_the_card_says_what_the_run_was_and_no_folder_of_this_machine(card, run):
    said = json.loads(card.read_text())
    record = json.loads((run / "record.json").read_text())
    assert said["record"]["final"] == record["final"]
    assert said["check"]["trained"]["accuracy"] == record["final"]["test_accuracy"]
    assert abs(said["check"]["stored"]["accuracy"] - said["check"]["trained"]["accuracy"]) <= 0.02
    assert said["check"]["trained"]["accuracy"] > 0.5
    assert said["check"]["samples"] == 1000
    assert said["weights"]["bytes"] == (card.parent / "digits.safetensors").stat().st_size < 2**20
    assert str(run.parent) not in card.read_text()
    page = (card.parent / "page.md").read_text()
    assert f"| last epoch | {100 * record['final']['test_accuracy']:.2f} %" in page
    assert said["weights"]["sha256"] in page
    assert max(map(len, page.splitlines())) <= 120


def test_float16_weights_are_the_runs_to_float16s_rounding(card, run):
    net, trained = create_model("cnn8", pretrained=str(card)), load_run(run, "last", print).network
    assert not net.training
    for (name, a), b in zip(net.state_dict().items(), trained.state_dict().values(), strict=True):
        wanted = b.half().float() if b.dim() > 1 else b
        assert torch.equal(a, wanted), name


def test_int8_weights_lie_within_half_a_step(run, tmp_path):
    tool.main(
        [str(run), "d8", "--format", "int8", "--tolerance", "5", "--cards", str(tmp_path), "-o", f"{tmp_path}/p.md"]
    )
    net, trained = create_model("cnn8", pretrained=f"{tmp_path}/d8.json"), load_run(run, "last", print).network
    for (name, a), b in zip(net.state_dict().items(), trained.state_dict().values(), strict=True):
        step = b.abs().flatten(1).amax(1) / 127 if b.dim() > 1 else torch.zeros(1)
        assert ((a - b).abs().flatten(1).amax(1) <= 0.5001 * step).all() if b.dim() > 1 else torch.equal(a, b), name
    small, large = ((tmp_path / "d8.safetensors"), sum(v.numel() for v in trained.state_dict().values()))
    assert small.stat().st_size < 1.4 * large


def test_predict_and_evaluate_take_the_card(card, tmp_path, capsys):
    digits = load_dataset("mnist5k", "test")
    Image.fromarray(digits.x[3, ..., 0]).resize((300, 200)).convert("RGBA").save(tmp_path / "photo.png")
    capsys.readouterr()
    assert main(["predict", "--pretrained", str(card), str(tmp_path / "photo.png")]) == 0
    about, *lines = capsys.readouterr().out.splitlines()
    score = json.loads(card.read_text())["check"]["stored"]["accuracy"]
    said = f"digits: 10 classes, {100 * score:.2f} % of mnist5k's test set; photos are read at 14 x 14 pixels"
    assert about == said
    assert lines[0] == str(tmp_path / "photo.png")
    assert len(lines) == 6
    shares = [float(line.split()[-2]) for line in lines[1:]]
    assert shares == sorted(shares, reverse=True)
    assert main(["evaluate", "--pretrained", str(card), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = json.loads(card.read_text())["check"]["stored"]
    assert found["results"][0]["accuracy"] == wanted["accuracy"]
    assert found["weights"] == "pretrained digits (float16)"
    assert main(["evaluate", "--pretrained", str(card), "some/run"]) == 2
    assert "got both. Give one of them." in capsys.readouterr().err


def test_options_that_would_be_another_network_are_refused(card):
    with pytest.raises(InputError, match=r"holds weights of cnn8, got 'vgg11'. Name the model cnn8."):
        create_model("vgg11", pretrained=str(card))
    with pytest.raises(InputError, match=r"was trained with width_mult=0.125, got 0.5. Leave width_mult out."):
        create_model("cnn8", pretrained=str(card), width_mult=0.5)
    with pytest.raises(InputError, match=r"was trained with tau=0.2, got 0.3. Leave tau out."):
        create_model("cnn8", pretrained=str(card), tau=0.3)
    assert create_model("cnn8", pretrained=str(card), num_steps=4, in_channels=1).num_steps == 4


def test_other_classes_get_a_new_readout_and_the_old_features(card):
    net, old = create_model("cnn8", pretrained=str(card), num_classes=37), create_model("cnn8", pretrained=str(card))
    assert net(torch.zeros(1, 1, 14, 14)).shape == (2, 1, 37)
    kept = {k: v for k, v in net.state_dict().items() if not k.startswith("readout.")}
    assert all(torch.equal(v, old.state_dict()[k]) for k, v in kept.items())
    assert len(kept) == len(old.state_dict()) - 2


def test_training_starts_from_a_card_and_the_next_card_says_so(card, run, tmp_path, capsys):
    options = ["--data.train-samples", "600", "--train.epochs", "1", "--model.width-mult", "0.125", "--quiet"]
    options += ["--data.image-size", "14", "--monitor.every", "0", "--runs-dir", str(tmp_path), "--optim.lr", "0.01"]
    start = ["--preset", "demo", "--model.weights", str(card)]
    assert main(["train", *start, *options, "--name", "on"]) == 0
    record = json.loads((tmp_path / "on" / "record.json").read_text())
    said = json.loads(card.read_text())
    assert record["final"]["test_accuracy"] > said["check"]["stored"]["accuracy"] - 0.05
    assert record["network"]["weights_from"] == "digits"
    assert record["network"]["weights_sha256"] == said["weights"]["sha256"]
    box = tmp_path / "box"
    for name in ("more", "digits"):
        tool.main([str(tmp_path / "on"), name, "--tolerance", "2", "--cards", str(box), "-o", str(box / "page.md")])
    made = {name: json.loads((box / f"{name}.json").read_text())["check"]["before"] for name in ("more", "digits")}
    accuracy = said["check"]["stored"]["accuracy"]
    assert made["more"] == [{"card": "digits", "sha256": said["weights"]["sha256"], "accuracy": accuracy}]
    assert made["digits"] == [{k: said["record"][k] for k in ("clock", "config", "final", "seeds")}]
    assert f"from the weights of `digits` ({100 * accuracy:.2f} %): 1 epochs" in (box / "page.md").read_text()
    capsys.readouterr()
    assert main(["train", *start, *options, "--name", "other", "--model.name", "resnet18"]) == 2
    assert "holds weights of cnn8, got 'resnet18'. Name the model cnn8." in capsys.readouterr().err
    assert main(["train", *start, *options, "--name", "other", "--model.v-th", "1"]) == 2
    assert "was trained with v_th=0.5, got 1.0. Use --model.v_th 0.5." in capsys.readouterr().err
    for weights, told in (
        ("cifar1O", "unknown pretrained network 'cifar1O'. Did you mean 'cifar10"),
        ("https://host/card.json#sha256=12", "a card at an address is named with its hash"),
        ("gone.safetensors", "no weights at gone.safetensors: the file is not there."),
    ):
        assert main(["train", "--preset", "demo", "--model.weights", weights, *options, "--name", "other"]) == 2
        assert told in capsys.readouterr().err


def test_weights_of_a_card_keep_a_readout_of_other_classes(card):
    net, old = create_model("cnn8", in_channels=1, width_mult=0.125, num_classes=37), pretrained_card(str(card))
    drawn = net.state_dict()["readout.linear.weight"].clone()
    config = resolve({"model": {"name": "cnn8", "weights": str(card)}})
    assert start_from(config, net)["weights_from"] == "digits"
    state = pretrained.pretrained_state(old)
    assert torch.equal(net.state_dict()["readout.linear.weight"], drawn)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items() if not k.startswith("readout."))
    wide = create_model("cnn8", in_channels=1, image_size=14, width_mult=0.25)
    with pytest.raises(InputError, match=r"pretrained 'digits' was trained with width_mult=0.125, got 0.25"):
        start_from(config, wide)
    with pytest.raises(InputError, match=r"the weights of 'digits' do not fit this cnn8: \d+ tensors are missing"):
        pretrained.fitting_state(old, state, wide.state_dict(), 10)


def test_unknown_names_are_refused_in_one_sentence(capsys):
    assert list_pretrained() == ["cifar10", "cifar100"]
    with pytest.raises(InputError, match=r"unknown pretrained network 'imagenet'."):
        create_model("resnet19", pretrained="imagenet")
    assert main(["predict", "photo.jpg"]) == 2
    assert "got only photo.jpg. Write `mpd-agl predict RUN IMAGE`" in capsys.readouterr().err


def test_every_network_in_the_package_builds_and_is_small():
    for name in list_pretrained():
        found = pretrained_card(name)
        net = create_model(found.model, pretrained=name)
        H, W, C = found.shape
        assert net(torch.zeros(1, C, H, W)).shape[-1] == len(found.classes)
        assert found.weights["bytes"] < 2**20


def test_damaged_weights_and_cards_are_refused(card, tmp_path):
    data = bytearray((card.parent / "digits.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "digits.safetensors").write_bytes(data)
    (tmp_path / "digits.json").write_bytes(card.read_bytes())
    with pytest.raises(InputError, match=r"is not the file that its card names: the sha256 differs"):
        create_model("cnn8", pretrained=str(tmp_path / "digits.json"))
    said = json.loads(card.read_text())
    wrong = [
        ("{", "is no JSON"),
        ("[]", "is no model card"),
        (json.dumps({**said, "schema": 2}), "is no model card"),
        (json.dumps({**said, "options": {**said["options"], "width_mult": 1e9}}), r"width_mult is 1000000000.0"),
        (json.dumps({**said, "options": {**said["options"], "width_mult": 4e4}}), "of another shape"),  # 40 TB
        (json.dumps({**said, "weights": {**said["weights"], "sha256": "12"}}), r"without a known format and sha256"),
        (json.dumps({**said, "weights": {**said["weights"], "file": "../x.safetensors"}}), "Use a plain file name"),
    ]
    (tmp_path / "digits.safetensors").write_bytes((card.parent / "digits.safetensors").read_bytes())
    for text, words in wrong:
        (tmp_path / "digits.json").write_text(text)
        with pytest.raises(InputError, match=words):
            create_model("cnn8", pretrained=str(tmp_path / "digits.json"))
    said["record"]["data"]["mean"] = [0.1, 0.2]
    (tmp_path / "digits.json").write_text(json.dumps(said))
    assert main(["predict", "--pretrained", str(tmp_path / "digits.json"), "x.png"]) == 2


def test_weights_from_an_address(card, tmp_path, monkeypatch):
    """Fetched once, kept, and refused where the hash is another or the way is not https."""
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path / "cache"))
    data, asked = (card.parent / "digits.safetensors").read_bytes(), []
    there = {"https://host/digits.safetensors": data}
    monkeypatch.setattr(pretrained, "download", lambda url, most: asked.append((url, most)) or there[url])
    said = json.loads(card.read_text())
    said["weights"] = {k: v for k, v in said["weights"].items() if k != "file"} | {
        "url": "https://host/digits.safetensors"
    }
    text = json.dumps(said).encode()
    there["https://host/card.json"] = text
    name = f"https://host/card.json#sha256={hashlib.sha256(text).hexdigest()}"
    first, again = create_model("cnn8", pretrained=name), create_model("cnn8", pretrained=name)
    assert asked == [("https://host/card.json", 2**20), ("https://host/digits.safetensors", len(data))]
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    kept = tmp_path / "cache" / "pretrained" / f"{said['weights']['sha256']}.safetensors"
    kept.write_bytes(b"damaged")
    create_model("cnn8", pretrained=name)
    assert kept.read_bytes() == data
    kept.unlink()
    there["https://host/digits.safetensors"] = data[:-1] + b"?"
    with pytest.raises(InputError, match=r"gave another file than was named: its sha256 is [0-9a-f]{64}, expected"):
        create_model("cnn8", pretrained=name)
    assert not kept.exists()
    with pytest.raises(InputError, match=r"a card at an address is named with its hash"):
        create_model("cnn8", pretrained="https://host/card.json")


class Answer:
    """What an opener gives."""

    def __init__(self, data: bytes) -> None:
        self.data, self.headers = data, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self, count: int) -> bytes:
        part, self.data = self.data[:count], self.data[count:]
        return part


def test_only_https_and_only_so_many_bytes(monkeypatch):
    for url in ("http://host/x", "file:///etc/passwd", "ftp://host/x"):
        with pytest.raises(InputError, match=r"by https alone"):
            pretrained.download(url, 10)
    with pytest.raises(InputError, match=r"by https alone, got http://other/x"):
        pretrained._OnlyHttps().redirect_request(None, None, 302, "", {}, "http://other/x")
    handlers = []

    class Opener:
        def open(self, request, timeout):
            return Answer(b"0123456789")

    monkeypatch.setattr(pretrained.urllib.request, "build_opener", lambda h: handlers.append(h) or Opener())
    assert pretrained.download("https://host/x", 10) == b"0123456789"
    assert handlers == [pretrained._OnlyHttps]
    with pytest.raises(InputError, match=r"sends more than the 9 bytes"):
        pretrained.download("https://host/x", 9)


def test_the_page_is_what_the_cards_say():
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(tool.CARDS)
