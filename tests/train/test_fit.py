"""`mpd_agl.fit` and `--model.name module:factory`: own networks and own data with the guarantees of a run."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import mpd_agl
from mpd_agl import cli
from mpd_agl.data.load import load_dataset
from mpd_agl.errors import InputError
from mpd_agl.nn import Readout, SpikingBlock, over_time
from mpd_agl.train import fit as fit_module
from mpd_agl.train.observe import Display
from tests.refused import refused
from tests.train.tiny import fingerprint

RNG = np.random.default_rng(0)
Y = np.arange(24) % 3
X = (RNG.random((24, 1, 8, 8)) * 0.3 + Y[:, None, None, None] * 0.3).astype(np.float32)
TEST = (X[:12], Y[:12])


class Spiking(nn.Module):
    """Of the package's blocks."""

    def __init__(self, num_steps: int = 2) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.conv1 = SpikingBlock(nn.Conv2d(1, 4, 3, padding=1, bias=False))
        self.pool = nn.AvgPool2d(4)
        self.drop = nn.Dropout(0.2)
        self.readout = Readout(16, 3)

    def forward(self, x):
        s = over_time(self.pool, self.conv1(x.unsqueeze(0), self.num_steps))
        return self.readout(self.drop(s.flatten(2)))


class Memory(nn.Module):
    """A neuron as SpikingJelly's: its potential stays in the module until `reset`, and it must be reset."""

    def __init__(self) -> None:
        super().__init__()
        self.v: Any = 0.0

    def reset(self) -> None:
        self.v = 0.0

    def forward(self, x):
        self.v = 0.5 * self.v + x
        s = torch.sigmoid(4 * (self.v - 1.0))
        self.v = self.v * (1 - s)
        return s


class MemoryModule(Memory):
    """The name by which stateful modules of SpikingJelly are known."""


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), MemoryModule(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x.view(x.shape))  # a view of the input, as many networks take


def loop(net, x):
    return torch.stack([net(x) for _ in range(3)])


def run(tmp_path: Path, net: nn.Module, **options: Any):
    given: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 8,
        "runs_dir": tmp_path,
        "name": "a",
        "quiet": True,
        "monitor": 2,
    }
    data = (options.pop("train", (X, Y)), options.pop("test", TEST))
    return mpd_agl.fit(net, *data, **{**given, **options})


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["log"] == kind]


def test_an_own_network_is_trained_in_place_and_recorded(tmp_path, capsys):
    net = build(Spiking)
    before = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    record = run(tmp_path, net, lr=0.05)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == torch.are_deterministic_algorithms_enabled()
    path = tmp_path / "a"
    saved = load_file(path / "model.safetensors")
    assert saved.keys() == net.state_dict().keys()
    assert all(torch.equal(saved[k], v) for k, v in net.state_dict().items())
    assert not net.training
    assert record.status == "finished"
    assert record.config["model"]["name"] == "own"
    assert record.method == "own"
    assert record.network["class"] == "tests.train.test_fit:Spiking"
    assert record.network["num_steps"] == 2
    assert record.network["parameters"] == sum(p.numel() for p in net.parameters())
    assert record.data["train"]["samples"] == 24
    assert record.data["classes"] == ["0", "1", "2"]
    x = torch.from_numpy((X[:12] - record.data["mean"][0]) / record.data["std"][0])
    with torch.no_grad():
        right = float((net(x).mean(0).argmax(1).numpy() == Y[:12]).mean())
    assert record.final["test_accuracy"] == right
    assert [list(s["layers"]) for s in lines(path, "monitor")] == [["conv1"]] * 3
    assert cli.main(["report", str(path)]) == 0
    page = (path / "report.html").read_text(encoding="utf-8")
    assert "Spiking" in page
    assert "operations are counted in the networks of mpd-agl" in page
    assert "report:" in capsys.readouterr().out


def test_plain_networks_of_two_dimensional_output_with_state_and_a_loop(tmp_path):
    net = build(Stateful)
    net(torch.zeros(2, 1, 8, 8))  # leaves a state, with its graph
    record = run(tmp_path, net, forward=loop, optimizer="adam", settings={"train.ema": 0.5})
    assert record.network["num_steps"] == 3
    assert record.network["forward"] == "tests.train.test_fit:loop"
    assert net.layers[2].v == 0.0
    assert not lines(tmp_path / "a", "monitor")
    flat = run(tmp_path, build(Stateful), name="flat")
    assert flat.network["num_steps"] == 1
    assert flat.final["epoch"] == 2
    assert cli.main(["report", str(tmp_path / "a")]) == 0
    assert "no spiking layer that it knows" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")


class StopAt(Display):
    """Ends the run after some steps, as a signal would."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress):
        if progress.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Spiking, Stateful])
@pytest.mark.parametrize("at", [1, 4])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, kind, at, monkeypatch):
    settings = {"checkpoint.every_steps": 1, "checkpoint.keep_last": 9}
    options: dict[str, Any] = {"settings": settings, "augment": ("flip",)}
    run(tmp_path / "whole", build(kind), **options)
    monkeypatch.setattr(fit_module, "build_display", lambda how: StopAt(at))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", build(kind), **options)
    monkeypatch.undo()
    net = build(kind, seed=7)  # its weights come from the checkpoint
    if at == 1:  # nothing was saved yet: it must begin with the same weights
        net = build(kind)
    record = run(tmp_path / "cut", net, resume=True, **options)
    assert fingerprint(tmp_path / "cut" / "a") == fingerprint(tmp_path / "whole" / "a")
    again = build(kind, seed=8)
    assert run(tmp_path / "cut", again, resume=True, **options) == record
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), net.state_dict().values(), strict=True))


def test_resuming_with_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_module, "build_display", lambda how: StopAt(4))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, build(Spiking))
    monkeypatch.undo()
    with refused("other-network", "Spiking", "Stateful"):
        run(tmp_path, build(Stateful), resume=True)
    with refused("other-data", "train data of own"):
        run(tmp_path, build(Spiking), resume=True, train=(X[::-1].copy(), Y[::-1].copy()))
    with refused("changed-config", "optim.lr was 0.1, got 0.2"):
        run(tmp_path, build(Spiking), resume=True, lr=0.2)
    with refused("run-exists", "resume=True"):
        run(tmp_path, build(Spiking))
    assert cli.main(["train", "--resume", str(tmp_path / "a")]) == 2
    assert run(tmp_path, build(Spiking), resume=True).status == "finished"
    with pytest.raises(InputError, match="does not fit"):
        run(tmp_path, build(Stateful), resume=True)


def test_data_of_every_kind_give_the_same_run(tmp_path):
    pair = run(tmp_path, build(Spiking), name="pair").final
    tensors = (torch.from_numpy(X), torch.from_numpy(Y))
    dataset = torch.utils.data.TensorDataset(*tensors)
    items = [(x, int(y)) for x, y in zip(*tensors, strict=True)]
    for name, train in (
        ("tensors", tensors),
        ("dataset", dataset),
        ("list", torch.utils.data.Subset(items, range(24))),
    ):
        assert run(tmp_path, build(Spiking), name=name, train=train).final == pair
    np.savez(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X[:12], y_test=Y[:12])
    found = run(tmp_path, build(Spiking), name="npz", train=tmp_path / "d.npz", test=None)
    assert found.final == pair
    assert found.config["data"]["name"] == "npz"
    held = run(tmp_path, build(Spiking), name="held", test=None, holdout=6)
    assert held.data["train"]["samples"] == 18
    assert held.data["test"]["samples"] == 6
    sets = [load_dataset("npz", split, data_dir=tmp_path / "d.npz") for split in ("train", "test")]
    arrays = run(tmp_path, build(Spiking), name="sets", train=sets[0], test=sets[1])
    assert arrays.final == pair
    assert arrays.data["train"]["arrays_sha256"] != arrays.data["test"]["arrays_sha256"]


NAN = X.copy()
NAN[3, 0, 2, 2] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": (NAN, Y)}, "holds NaN or infinite values"),
        ({"test": (X[:12], Y[:12] + 1)}, "holds the label 3, outside 0..2"),
        ({"test": (X[:12, :, :4, :4], Y[:12])}, "Give both the same"),
        ({"test": None}, "scored on test data or on held-out training samples, got none"),
        ({"forward": lambda net, x: net(x)[0]}, r"must return logits \(T, N, K\) or \(N, K\)"),
        ({"forward": lambda net, x: net(x[:, :, :4])}, "failed on an input of shape"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_folder_is_made(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, build(Stateful), **change)
    assert not (tmp_path / "a").exists()


def test_networks_that_cannot_be_trained_are_refused(tmp_path):
    with pytest.raises(InputError, match="gives 4 logits, and the data have 3 classes"):
        run(tmp_path, nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    with pytest.raises(InputError, match="no parameter that requires a gradient"):
        run(tmp_path, nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False))
    with pytest.raises(InputError, match="got list"):
        run(tmp_path, [])  # type: ignore[arg-type]


def test_lazy_layers_and_tied_weights_are_trained(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LazyLinear(3), nn.Linear(3, 3)
            self.third = nn.Linear(3, 3)
            self.third.weight = self.second.weight

        def forward(self, x):
            return self.third(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))

    net = Tied()
    assert run(tmp_path, net).status == "finished"
    saved = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(saved["second.weight"], saved["third.weight"])
    assert net.third.weight is net.second.weight


MODULE = """
import torch
from torch import nn
from tests.train.test_fit import Spiking, Stateful

def build(num_classes, in_channels, num_steps):
    assert (num_classes, in_channels) == (3, 1)
    return Spiking(num_steps)

def everything(**options):
    assert set(options) == {"num_classes", "in_channels", "image_size", "num_steps", "method"}
    return Stateful()

def spiking():
    return Spiking()

def fails(num_steps):
    raise RuntimeError("no weights today")

"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the user's module and data, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mynet.py").write_text(MODULE)
    np.savez(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X[:12], y_test=Y[:12])
    yield tmp_path
    sys.modules.pop("mynet", None)


def train(name: str, *more: str) -> int:
    options = "--data.name npz --data.data-dir d.npz --train.epochs 2 --train.batch-size 8 --monitor.every 3 --quiet"
    return cli.main(["train", "--model.name", name, *options.split(), *more])


def test_a_factory_is_trained_resumed_evaluated_and_predicted(here, capsys):
    assert train("mynet:build", "--model.num-steps", "3") == 0
    path = here / "runs" / "npz-mynet.build-mpd-agl-s0"
    record = json.loads((path / "record.json").read_text())
    assert record["config"]["model"]["name"] == "mynet:build"
    assert record["network"]["num_steps"] == 3
    assert record["network"]["options"] == {"num_classes": 3, "in_channels": 1, "num_steps": 3}
    assert train("mynet:everything", "--name", "all", "--dry-run") == 0
    assert "not counted in your own network" in capsys.readouterr().out
    for command in ("evaluate --json", "predict", "report", "train --resume"):
        name, *flags = command.split()
        more = ["x.png"] if name == "predict" else []
        Image.fromarray((255 * X[0, 0]).astype(np.uint8)).save("x.png")
        capsys.readouterr()
        assert (
            cli.main([name, *(flags if name == "train" else []), str(path), *more, *(flags if name != "train" else [])])
            == 0
        )
        out = capsys.readouterr().out
        if name == "evaluate":
            assert json.loads(out)["results"][0]["accuracy"] == record["final"]["test_accuracy"]
    assert cli.main(["evaluate", str(path), "--fold"]) == 2
    assert "this needs a network of mpd-agl" in capsys.readouterr().err
    assert cli.main(["runs", "--runs-dir", "runs"]) == 0
    assert "Spiking T=3" in capsys.readouterr().out
    (here / "mynet.py").write_text(MODULE.replace("return Spiking(num_steps)", "return Stateful()"))
    sys.modules.pop("mynet")
    assert cli.main(["evaluate", str(path)]) == 2
    assert "trained another network than mynet:build builds" in capsys.readouterr().err


def test_a_run_of_an_object_is_evaluated_by_its_factory(here, capsys):
    class Local(Spiking):
        pass

    record = run(here, Local(), train="d.npz", test=None)
    assert cli.main(["evaluate", "a"]) == 2
    err = capsys.readouterr().err
    assert "trained an object of" in err
    assert "--factory MODULE:FACTORY" in err
    assert cli.main(["evaluate", "a", "--json", "--factory", "mynet:spiking"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["accuracy"] == record.final["test_accuracy"]
    run(here, build(Spiking), name="b")
    assert cli.main(["evaluate", "b"]) == 2
    assert "arrays in the memory of the program" in capsys.readouterr().err
    run(here, build(Stateful), name="c", forward=lambda net, x: loop(net, x))
    assert cli.main(["predict", "c", "x.png"]) == 2
    assert "which no module holds" in " ".join(capsys.readouterr().err.split())


def test_an_own_network_is_exported(here, capsys):
    assert train("mynet:build", "--name", "a") == 0
    assert cli.main(["export", "runs/a", "--format", "nir", "-o", "a.nir"]) == 2
    assert "this needs a network of mpd-agl" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["rows", "sequences", "dataset"])
def test_samples_of_any_shape_are_taken_as_they_are(kind, tmp_path):
    torch.manual_seed(0)
    shape = (5,) if kind != "sequences" else (4, 3, 6)
    x = torch.randn(23, *shape) * 3
    y = torch.arange(23) % 2
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(math.prod(shape), 2)

        def forward(self, x):
            seen.append(x)
            return self.fc(x.flatten(1))

    data = torch.utils.data.TensorDataset(x, y) if kind == "dataset" else (x, y)
    options = {"as_is": True} if kind == "sequences" else {}
    record = mpd_agl.fit(
        Net(), data, (x[:4], y[:4]), epochs=1, runs_dir=tmp_path, name="r", quiet=True, monitor=0, **options
    )
    assert record.data["train"]["sample_shape"] == list(shape)
    assert record.config["train"]["batch_size"] == 23  # the usual 100, but there are fewer
    whole = next(s for s in seen if len(s) == 23)
    assert whole.shape == (23, *shape)
    order = [int((x == row).flatten(1).all(1).nonzero()[0, 0]) for row in whole]
    assert sorted(order) == list(range(23))  # every sample once, to the bit


def test_augmentation_of_what_is_no_image_is_refused(tmp_path):
    x, y = torch.randn(8, 5), torch.arange(8) % 2
    with pytest.raises(InputError, match=r"augmentation takes images or frames, got samples of shape \(5,\)"):
        mpd_agl.fit(
            nn.Linear(5, 2), (x, y), (x, y), epochs=1, augment=["flip"], runs_dir=tmp_path, name="r", quiet=True
        )
