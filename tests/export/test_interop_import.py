"""Weights of other programs: the same function afterwards, and hostile files refused before they do anything."""

import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.export import import_weights
from mpd_agl.models import Network, create_model, load_weights
from tests.data.samplefiles import make_pt
from tools.authors import places


def trained(name: str, seed: int, **options: Any) -> Network:
    """A network whose every tensor is away from where it starts."""
    torch.manual_seed(seed)
    net = create_model(name, width_mult=1 / 32, **options)
    with torch.no_grad():
        for key, tensor in net.state_dict().items():
            if "running_var" in key or key.endswith("norm.weight"):
                tensor.uniform_(0.5, 2)
            elif tensor.is_floating_point() and "synapse.weight" not in key:
                tensor.normal_(0, 0.3)
    return net.eval()


def as_the_authors_write(net: Network) -> dict[str, torch.Tensor]:
    """Their published ResNet-19: the first linear layer has a bias before its norm, the last layer has none."""
    out: dict[str, torch.Tensor] = OrderedDict()
    for key, tensor in net.state_dict().items():
        if key.startswith("readout"):
            if key.endswith("weight"):
                out["fc.2.layer.weight"] = tensor.clone()
            continue
        block, part, name = key.rsplit(".", 2)
        layer, spike = places()[block]
        if part == "synapse":
            out[f"{layer}.layer.{name}"] = tensor.clone()
            if block == "fc1":
                out[f"{layer}.layer.bias"] = torch.randn(len(tensor))
        elif part == "norm":
            moved = out["fc.0.layer.bias"] if key == "fc1.norm.running_mean" else 0
            out[f"{layer}.bn.{name}"] = tensor + moved
        else:
            out[f"{spike}.neuron.w"] = tensor.clone()
    return out


def test_the_authors_resnet19(tmp_path: Path) -> None:
    net, other = trained("resnet19", 1), trained("resnet19", 2)
    nn.init.zeros_(net.readout.linear.bias)
    state = as_the_authors_write(net)
    assert "ResNetBlocks.3.0.downsample.1.neuron.w" in state
    assert "fc.2.layer.bias" not in state
    torch.save(
        {"net": state, "optimizer": {"state": {}}, "best_acc": 96.0, "best_epoch": 3}, tmp_path / "best_model.pth"
    )
    report = import_weights(other, tmp_path / "best_model.pth", "authors")
    assert report.unused == []
    assert ("fc.1.neuron", "fc1.neuron") in report.pairs
    for key, tensor in net.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], tensor, rtol=0, atol=1e-6)
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(other(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_potential_at_the_threshold_fires_as_the_authors_does() -> None:
    """Their neuron fires at `v >= v_th`, so an imported network needs no correction at exactly the threshold."""
    net = create_model("cnn8")
    spikes = net.conv1.neuron(torch.tensor([[[0.5, 0.5 - 2**-20]]]))
    assert spikes.tolist() == [[[1.0, 0.0]]]


class Jelly(nn.Module):
    """SpikingJelly's conventions written out: gamma holds alpha*v_th, and 1 - sigmoid(w) of the potential is kept."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for number in range(1, 8):
            own = net.get_submodule(f"conv{number}")
            block = nn.ModuleDict(
                {"0": nn.Conv2d(own.synapse.in_channels, own.synapse.out_channels, 3, padding=1, bias=False)}
            )
            block["1"] = nn.BatchNorm2d(own.synapse.out_channels)
            block["2"] = nn.Module()
            block["2"].w = nn.Parameter(torch.randn(()))
            nn.init.uniform_(block["1"].weight, 0.2, 0.8)
            nn.init.normal_(block["1"].bias, 0, 0.2)
            block["1"].running_var.uniform_(0.5, 2)
            self.blocks.append(block)
        self.fc = nn.Linear(net.readout.linear.in_features, net.readout.linear.out_features)

    def forward(self, x: torch.Tensor, num_steps: int, v_th: float) -> torch.Tensor:
        s = x.expand(num_steps, *x.shape)
        for number, block in enumerate(self.blocks):
            current = torch.stack([block["1"](block["0"](frame)) for frame in s])
            v, spikes = torch.zeros_like(current[0]), []
            for t in range(num_steps):
                v = v - v * torch.sigmoid(block["2"].w) + current[t]
                spikes.append((v >= v_th).float())
                v = v * (1 - spikes[-1])
            s = torch.stack(spikes)
            if number in (1, 3, 5):
                s = torch.stack([nn.functional.avg_pool2d(frame, 2) for frame in s])
        return self.fc(s.mean((3, 4)))


def test_spikingjellys_scale_and_decay(tmp_path: Path) -> None:
    net = create_model("cnn8", width_mult=1 / 16, num_steps=3).eval()
    jelly = Jelly(net).eval()
    torch.save(jelly.state_dict(), tmp_path / "net.pt")
    import_weights(net, tmp_path / "net.pt", "spikingjelly")
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(net(x), jelly(x, 3, 0.5), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.conv1.norm.weight * 0.5, jelly.blocks[0]["1"].weight)
    assert net.conv1.neuron.rho == -jelly.blocks[0]["2"].w


def test_spikingjelly_itself(tmp_path: Path) -> None:
    pytest.importorskip("spikingjelly.activation_based", exc_type=ImportError)
    from spikingjelly.activation_based import layer, neuron

    net = create_model("cnn8", width_mult=1 / 16, num_steps=3).eval()
    parts: list[nn.Module] = []
    for number in range(1, 8):
        own = net.get_submodule(f"conv{number}").synapse
        norm = layer.ThresholdDependentBatchNorm2d(1.0, 0.5, own.out_channels)
        nn.init.uniform_(norm.weight, 0.2, 0.8)
        plif = neuron.ParametricLIFNode(1.5 + 0.2 * number, False, 0.5, 0.0, step_mode="m")
        parts += [layer.Conv2d(own.in_channels, own.out_channels, 3, padding=1, bias=False, step_mode="m"), norm, plif]
        parts += [layer.AvgPool2d(2, 2, step_mode="m")] if number in (2, 4, 6) else []
    readout = nn.Linear(net.readout.linear.in_features, 10)
    jelly = nn.Sequential(*parts).eval()
    torch.save({**jelly.state_dict(), **{f"fc.{k}": v for k, v in readout.state_dict().items()}}, tmp_path / "net.pt")
    import_weights(net, tmp_path / "net.pt", "spikingjelly")
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected = readout(jelly(x.expand(3, *x.shape)).mean((3, 4)))
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = trained("cnn8", 1)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    out = tmp_path / "model.safetensors"
    words = ["import-weights", str(tmp_path / "net.pt"), "--from", "mpd-agl", "--model", "cnn8", "-o", str(out)]
    assert main([*words, "--width-mult", "0.0625"]) == 2
    assert "of another shape (first conv1.synapse.weight: (2, 3, 3, 3), not (4, 3, 3, 3))" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--width-mult", "0.03125", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pairs"]) == len(net.state_dict())
    again = trained("cnn8", 2)
    load_weights(again, out)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in net.state_dict().items())
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


def refused(path: Path, words: str, source: str = "mpd-agl") -> None:
    net = create_model("cnn8", width_mult=1 / 32)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(InputError, match=words) as error:
        import_weights(net, path, source)
    assert "\n" not in str(error.value)
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())


class Call:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"net": Call()}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "holds more than tensors")
    torch.save(nn.Linear(2, 2), tmp_path / "b.pt")
    refused(tmp_path / "b.pt", "holds more than tensors")
    refused(make_pt(tmp_path / "c.pt", b"cos\nsystem\n(S'echo code ran'\ntR."), "holds more than tensors")
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Call()))
    refused(tmp_path / "d.pt", "is no zip file as torch.save writes")
    assert "code ran" not in capsys.readouterr().out


def test_files_that_hang_or_fill_the_memory(tmp_path: Path) -> None:
    """Further kinds are in the fault table's row `hostile`."""
    holds_itself = b"\x80\x02}q\x00X\x03\x00\x00\x00neth\x00s."
    refused(make_pt(tmp_path / "itself.pt", holds_itself), "holds no state_dict")
    state = create_model("cnn8", width_mult=1 / 32).state_dict()
    torch.save({**state, "conv1.synapse.weight": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    refused(tmp_path / "sparse.pt", "is no plain tensor|holds more than tensors")


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path / "none.pt", "cannot read .*none.pt: No such file")
    (tmp_path / "text.pt").write_text("weights")
    refused(tmp_path / "text.pt", "is no zip file")
    refused(make_pt(tmp_path / "cut.pt", b"\x80\x02}q"), "is damaged")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as pack:
        pack.writestr("a.txt", "a")
    refused(tmp_path / "other.pt", "no single data.pkl")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    refused(tmp_path / "empty.pt", "holds no state_dict")
    net = create_model("cnn8", width_mult=1 / 32)
    nan = {**net.state_dict(), "conv1.norm.bias": torch.full((2,), float("nan"))}
    torch.save(nan, tmp_path / "nan.pt")
    refused(tmp_path / "nan.pt", "holds NaN")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    refused(tmp_path / "net.pt", "unknown source", "keras")
