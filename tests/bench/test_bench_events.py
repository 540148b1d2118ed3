"""`mpd-agl bench events`: what its figures mean (rates read and imposed), who gets a ratio, what is told, where tables go. No times."""

import json
from importlib.util import find_spec

import pytest
import torch

from mpd_agl.bench import active, active_layers, active_network, contenders
from mpd_agl.bench.firing_rates import impose
from mpd_agl.bench.rates import read_rates
from mpd_agl.bench.setting import Setting
from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.kernels import native
from mpd_agl.models import create_model
from mpd_agl.nn import event_layers
from tests.report import runfolder as made

needs_native = pytest.mark.skipif(bool(native.load()[1]), reason="the native library is not here")
TINY = ["--model", "cnn8", "--width-mult", "0.125", "--image-size", "8", "--batch", "2", "--quick", "--threads", "1"]
RATES = {"layers": {f"conv{i}": {"rate": 0.05 * i} for i in range(1, 8)}}
MARKS = "".join(f"<!-- {n}: begin -->\nold\n<!-- {n}: end -->\nafter\n" for n in ("table", "network"))


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
    told = impose(net, x, wanted)
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
    grad = active_layers.events.weight_grad
    monkeypatch.setattr(active_layers.events, "weight_grad", lambda *a: grad(*a) * 1.0001)
    cell = active_layers.one_convolution((16, 4, 2), 0.2, 1)
    assert [cell[key] for key in active_layers.SPEED_UPS] == [None] * 3
    assert "16, 4x4, 2" in active_layers.text([cell])
    assert active_layers.text([cell]).count("differs") == 4


@needs_native
@pytest.mark.parametrize("work", ["train", "infer"])
def test_a_network_that_differs_is_seen(work):
    setting = Setting(work=work, model="cnn8", width_mult=0.125, image_size=8, batch=2, threads=1)
    base = active_network.network(setting, "dense")
    x, _ = contenders.inputs(setting, base)
    impose(base, x, dict.fromkeys(RATES["layers"], 0.2))
    base.train(work == "train")
    net, reference = active_network._ours(setting, "event", base), active_network.Reference(base, x)
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
def test_the_command_measures_prints_and_writes_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(active_layers, "SHAPES", ((16, 4, 16), (32, 2, 16)))
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    out, page = tmp_path / "events.json", tmp_path / "page.md"
    assert main(["bench", "events", "--rates", str(tmp_path / "rates.json"), *TINY, "-o", str(out)]) == 0
    printed, record = capsys.readouterr().out, json.loads(out.read_text())
    assert record["what"] == "mpd-agl bench events"
    assert record["rates"] == RATES
    assert {"code", "versions", "hardware", "load_before"} <= set(record)
    assert [(c["channels"], c["batch"]) for c in record["table"]["cells"]] == [(16, 2)] * 5 + [(32, 2)] * 5
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

    page.write_text("before\n" + MARKS)
    assert main(["bench", "page", "--events", str(out), "-o", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- table: begin -->\n")
    assert "old" not in text
    assert "[Record](events.json)" in text
    assert f"| dense | {record['inference']['contenders']['dense']['ms']:.1f} |" in text
    assert text.endswith("<!-- network: end -->\nafter\n")
    assert (tmp_path / "events-speedup.svg").read_bytes().startswith(b"<?xml")


def record(**parts):
    facts = {"setting": {"threads": 1, "simd": "avx2", "rounds": 7, "quick": False}, "hardware": {"cpu": "a processor"}}
    facts |= {"versions": {"torch": "2.10"}, "code": {"commit": "0123456789ab", "changed": False}}
    return {"what": active.WHAT, "rates": None, "load_before": 0.25, **facts, **parts}


def test_docs_are_written_between_the_marks(tmp_path):
    cell = {"channels": 128, "size": 32, "batch": 32, "rate": 0.14, "asked_rate": 0.14}
    cell |= {"speed_up": 3.25, "speed_up_alone": None, "speed_up_weight_gradient": 5.0}
    page, source = tmp_path / "events.md", tmp_path / "table.json"
    page.write_text("before\n" + MARKS)
    source.write_text(json.dumps(record(table={"cells": [cell]})))
    assert main(["bench", "page", "--events", str(source), "-o", str(page)]) == 0
    text = page.read_text()
    head = (
        "a processor, 1 threads, avx2, torch 2.10, 7 rounds, load 0.2 before, commit 012345678. [Record](table.json)."
    )
    assert text.startswith(f"before\n<!-- table: begin -->\n{head}\n")
    assert "| 128, 32x32, 32 | 3.25x |" in text
    assert "| 128, 32x32, 32 | differs |" in text
    assert text.count("old") == 1  # the network's part is not in this record
    assert (tmp_path / "events-speedup.svg").read_bytes().startswith(b"<?xml")


def test_a_contender_that_differs_has_no_ratio_in_text_and_page(tmp_path):
    times = {"auto": 100.0, "dense": 150.0, "SpikingJelly": 222.0}
    agreed = {"agrees": True, "how": "", "differ": 0.0, "worst": 0.0}
    part = {
        "setting": Setting(width_mult=1.0, batch=16).to_dict(),
        "rounds": 7,
        "contenders": {n: {"ms": t, "spread_ms": [t, t], "agreement": agreed} for n, t in times.items()},
        "ratios": {
            "base": "auto",
            "of": {n: {"time": t / 100, "range": [1, 2]} for n, t in times.items()},
        },
        "left_out": {},
        "layers": {},
    }
    part["contenders"]["SpikingJelly"]["agreement"] = {**agreed, "agrees": False, "how": "stem differs"}
    part["ratios"]["of"]["SpikingJelly"] = None
    source, page = tmp_path / "record.json", tmp_path / "events.md"
    source.write_text(json.dumps(record(training=part)))
    page.write_text(MARKS)
    assert main(["bench", "page", "--events", str(source), "-o", str(page)]) == 0
    assert "| dense | 150.0 | 1.50 | 1.00 to 2.00 |\n| SpikingJelly | 222.0 | outputs differ | |" in page.read_text()
    text = active_network.text(part)
    assert "2.22" not in text
    assert "SpikingJelly: no ratio, its outputs are not ours (stem differs)" in text


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
    assert main(["bench", "events", "--rates", str(source), *TINY, "-o", str(out)]) == 2
    assert said in (err := capsys.readouterr().err)
    assert "Traceback" not in err
    assert not out.exists()


def test_runs_that_hold_no_rates_are_told_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no run record at"):
        read_rates(tmp_path)
    silent = made.write(tmp_path / "silent", lines=made.events(monitored=False))
    with pytest.raises(InputError, match="was not monitored: it holds no firing rates. Train with --monitor.every 50."):
        read_rates(silent)
    torn = made.write(tmp_path / "torn", lines=[{"log": "monitor", "epoch": 1, "step": 1, "layers": {"stem": {}}}])
    with pytest.raises(InputError, match="rate_T' is missing"):
        read_rates(torn)
    wild = made.events()
    wild[-2]["layers"]["stem"]["rate_T"] = [float("nan")] * made.T
    with pytest.raises(InputError, match="are not what was written"):
        read_rates(made.write(tmp_path / "wild", lines=wild))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["events", "--part", "tabel"], "Did you mean 'table'"),
        (["events", "--part", "training"], "a whole network (training) needs firing rates"),
        (["events", "--rate", "runs/a"], "Did you mean --rates?"),
        (["events", "--threads", "0"], "threads must be at least 1"),
        (["events", "--contenders", "native"], "Leave it out"),
        (["events", "-o", "."], "is a folder"),
        (["events", "--plot", "a.svg"], "bench page --events"),
        (["page", "--events", "no.json"], "cannot be read"),
    ],
)
@needs_native
def test_mistakes_are_told_in_a_sentence(argv, said, capsys):
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_page_of_another_kind_stays_as_it_is(tmp_path, capsys):
    source, page = tmp_path / "record.json", tmp_path / "page.md"
    page.write_text("no marks here\n")
    source.write_text("{}")
    assert main(["bench", "page", "--events", str(source), "-o", str(page)]) == 2
    assert "is no record of mpd-agl bench events" in capsys.readouterr().err
    source.write_text(json.dumps(record(training={})))
    assert main(["bench", "page", "--events", str(source), "-o", str(page)]) == 2
    assert "are not what was written ('setting' is missing)" in capsys.readouterr().err
    assert page.read_text() == "no marks here\n"
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["page.md", "record.json"]
