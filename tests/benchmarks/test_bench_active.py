"""`mpd-agl bench active`: what its figures mean (rates read and imposed), who gets a ratio, what is said. No times."""

import json
from importlib.util import find_spec

import pytest
import torch

from benchmarks import active, active_layers, active_network, contenders
from benchmarks.firing_rates import impose_rates, read_rates
from benchmarks.workload import Workload
from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import event_layers
from mpd_agl.ops import native
from tests.report import runfolder as made

needs_native = pytest.mark.skipif(bool(native.load()[1]), reason="the native library is not here")
TINY = ["--model", "cnn8", "--width-mult", "0.125", "--image-size", "8", "--batch", "2", "--quick", "--threads", "1"]
RATES = {"layers": {f"conv{i}": {"rate": 0.05 * i} for i in range(1, 8)}}


def test_rates_are_the_means_of_the_last_epochs_snapshots(tmp_path):
    found = read_rates(made.write(tmp_path / "run"))
    assert list(found["layers"]) == list(made.LAYERS)
    assert found["layers"]["conv3"]["rate_T"] == pytest.approx([0.12, 0.121, 0.122])
    assert found["layers"]["conv3"]["rate"] == pytest.approx(0.121)
    assert found["run"]["steps"] == [21, 26]
    (tmp_path / "rates.json").write_text(json.dumps(found))
    (tmp_path / "record.json").write_text(json.dumps({"what": active.WHAT, "rates": found}))
    assert read_rates(tmp_path / "rates.json") == read_rates(tmp_path / "record.json") == found


def test_imposed_rates_are_those_asked_for():
    torch.manual_seed(0)
    net = create_model("cnn8", width_mult=0.0625, image_size=16)
    wanted = {f"conv{i}": 0.05 * i for i in range(1, 8)}
    x = torch.randn(8, 3, 16, 16)
    told = impose_rates(net, x, wanted)
    assert {name: layer["rate"] for name, layer in told.items()} == pytest.approx(wanted, abs=0.01)
    seen = {}
    for name in wanted:
        net.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: float(o.mean())}))
    for mode in (True, False):  # batch statistics are those that evaluation uses
        with torch.no_grad():
            net.train(mode)(x)
        assert seen == pytest.approx(wanted, abs=0.01)


@needs_native
def test_no_speed_up_of_a_convolution_that_differs(monkeypatch):
    cell = active_layers.one_convolution((16, 4, 2), 0.2, 1)
    assert cell["rate"] == pytest.approx(0.2, abs=0.05)
    assert cell["difference"] < 1e-6
    assert cell["weight_gradient_difference"] < 1e-6
    assert cell["speed_up"] == pytest.approx(cell["ms"]["dense"] / cell["ms"]["event, lists and weights at hand"])
    grad = active_layers.active.weight_grad
    monkeypatch.setattr(active_layers.active, "weight_grad", lambda *a: grad(*a) * 1.0001)
    cell = active_layers.one_convolution((16, 4, 2), 0.2, 1)
    assert [cell[key] for key in active_layers.SPEED_UPS] == [None] * 3
    assert "16, 4x4, 2" in active_layers.text([cell])
    assert active_layers.text([cell]).count("differs") == 4


@needs_native
@pytest.mark.parametrize("work", ["train", "infer"])
def test_a_network_that_differs_is_seen(work):
    setting = Workload(work=work, model="cnn8", width_mult=0.125, image_size=8, batch=2, threads=1)
    base = contenders.create(setting, conv_impl="dense")
    x, _ = contenders.inputs(setting, base)
    impose_rates(base, x, dict.fromkeys(RATES["layers"], 0.2))
    base.train(work == "train")
    net, reference = active_network.ours(setting, "event", base), active_network.Reference(base, x)
    assert reference.check(net).agrees
    assert active_network.layers_off(net, x)[0] < 1e-6
    with torch.no_grad():
        net.get_submodule("conv3").synapse.weight.mul_(1.5)
        found = reference.check(net)
        net.get_submodule("conv3").synapse.weight.div_(1.5)
    if work == "infer":  # in training tdBN takes the factor away
        assert not found.agrees
        assert "conv3" in found.how
    layer = event_layers(net)["conv4"]
    layer.dense = lambda x: type(layer).dense(layer, x) * 1.001
    found = reference.check(net)
    assert not found.agrees
    assert found.how.startswith("conv4 differs from its dense self by 1.0e-03")


@needs_native
def test_the_command_measures_prints_and_keeps_the_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(active_layers, "SHAPES", ((16, 4, 16), (32, 2, 16)))
    rates, out, figure = (tmp_path / name for name in ("rates.json", "active.json", "active.svg"))
    rates.write_text(json.dumps(RATES))
    files = ["--rates", str(rates), "-o", str(out), "--plot", str(figure)]
    assert main(["bench", "active", *TINY, *files]) == 0
    printed, record = capsys.readouterr().out, json.loads(out.read_text())
    assert record["what"] == "mpd-agl bench active"
    assert record["rates"] == RATES
    assert {"code", "versions", "hardware", "load_before"} <= set(record)
    assert [(c["channels"], c["batch"]) for c in record["table"]["cells"]] == [(16, 2)] * 8 + [(32, 2)] * 8
    assert len(record["slowdown"]) == 2 + 2 + 16  # a pause before every round of a network and every cell
    assert figure.read_bytes().startswith(b"<?xml")
    ours = ["auto", "event-driven everywhere", "dense"]
    assert set(record["inference"]["contenders"]) == {*ours, "ANN, batch N"}
    beside = {"dense convolutions alone"} | ({"SpikingJelly"} if find_spec("spikingjelly") else set())
    assert set(record["training"]["contenders"]) == {*ours, *beside}
    for part, work in (("inference", "infer"), ("training", "train")):
        assert record[part]["setting"]["work"] == work
        assert all(record[part]["ratios"]["of"].values()), record[part]["contenders"]
        assert record[part]["ratios"]["of"][ours[0]]["time"] == 1
        assert record[part]["layers"]["conv4"]["rate"] == pytest.approx(0.2, abs=0.02)
        assert ("input_grad" in record[part]["layers"]["conv4"]["choice"]["taken"]) == (work == "train")
    if not find_spec("spikingjelly"):
        assert "SpikingJelly: left out, it is not installed" in printed
    assert "16, 4x4, 2" in printed
    assert "ANN, batch N" in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "nothing is there. Give a run folder or a JSON of rates."),
        ("{", "is no JSON"),
        ("[1]", "holds no firing rates"),
        ('{"what": "mpd-agl bench train", "contenders": {}}', "holds no firing rates"),
        ('{"layers": {"conv1": {"rate": 1.5}}}', "shares from 0 to 1"),
        ('{"layers": {"conv1": {"rate": 0.1, "rate_in": NaN}}}', "is no JSON"),
        ('{"layers": {"conv1": {"rate": 0.1}}}', "cnn8 has a layer conv2, which they do not name"),
    ],
)
@needs_native
def test_rates_that_cannot_be_used_are_told_in_a_sentence(content, said, tmp_path, capsys):
    source, out = tmp_path / "rates.json", tmp_path / "out.json"
    if content:
        source.write_text(content)
    assert main(["bench", "active", "--rates", str(source), *TINY, "-o", str(out)]) == 2
    assert said in (err := capsys.readouterr().err)
    assert "Traceback" not in err
    assert not out.exists()


def test_runs_that_hold_no_rates_are_told_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no run record at"):
        read_rates(tmp_path)
    silent = made.write(tmp_path / "silent", lines=made.log_lines(monitored=False))
    with pytest.raises(InputError, match="was not monitored: it holds no firing rates. Train with --monitor.every 50."):
        read_rates(silent)
    torn = made.write(tmp_path / "torn", lines=[{"log": "monitor", "epoch": 1, "step": 1, "layers": {"stem": {}}}])
    with pytest.raises(InputError, match="rate_T' is missing"):
        read_rates(torn)
    wild = made.log_lines()
    wild[-2]["layers"]["stem"]["rate_T"] = [float("nan")] * made.T
    with pytest.raises(InputError, match="are not what was written"):
        read_rates(made.write(tmp_path / "wild", lines=wild))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["active", "--part", "tabel"], "Did you mean 'table'"),
        (["active", "--part", "training"], "a whole network (training) needs firing rates"),
        (["active", "--rate", "runs/a"], "Did you mean --rates?"),
        (["active", "--threads", "0"], "threads must be at least 1"),
        (["active", "--contenders", "native"], "unknown option --contenders"),
        (["active", "-o", "."], "is a folder"),
        (["active", "--part", "inference", "--plot", "a.svg"], "Add table to --part"),
    ],
)
@needs_native
def test_mistakes_are_told_in_a_sentence(argv, said, capsys):
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err
