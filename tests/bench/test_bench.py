"""The bench: who computes what others do, what a ratio needs, what is left out, what is kept. No test looks at a time."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from mpd_agl.bench import compare, contenders, equivalence, growth, peers, plot, show
from mpd_agl.bench.setting import Setting, from_dict
from mpd_agl.cli import bench as command
from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock
from mpd_agl.report import draw

SMALL = Setting(width_mult=0.0625, batch=4, image_size=16, threads=1)
MODELS = [SMALL, Setting(model="vggsnn", width_mult=0.0625, num_steps=3, batch=4, image_size=16, threads=1)]


def infer(setting):
    return contenders.setting_of(setting, work="infer")


@pytest.mark.parametrize("setting", [*MODELS, *map(infer, MODELS)], ids=lambda s: f"{s.work}-{s.model}")
@pytest.mark.parametrize("name", ["native", "eager", "spikingjelly", "snntorch"])
def test_a_contender_fires_where_the_reference_does(name, setting):
    if why := contenders.why_not(name, setting):
        pytest.skip(why)
    found = contenders.check(name, setting)
    assert found.agrees, found
    assert found.differ is not None
    assert found.differ < 1e-4


@pytest.mark.parametrize("name", ["native", "eager"])
def test_another_weight_or_decay_is_seen(name):
    if why := contenders.why_not(name, SMALL):
        pytest.skip(why)
    ours = equivalence.reference(contenders.network(SMALL))
    calls = equivalence.calls(ours, contenders.inputs(SMALL, ours)[0])
    net = contenders.timed_network(name, SMALL)
    assert equivalence.blocks_agree(calls, net, 0.5).agrees
    block = net.get_submodule("stage2.block1.conv1")
    assert isinstance(block, SpikingBlock)
    with torch.no_grad():
        block.neuron.rho.add_(0.3)
    result = equivalence.blocks_agree(calls, net, 0.5)
    assert not result.agrees
    assert "stage2.block1.conv1" in result.how
    assert result.worst > equivalence.NEAR


@pytest.mark.skipif(find_spec("spikingjelly") is None, reason="SpikingJelly is not installed")
def test_spikingjelly_gives_our_gradients_where_the_width_is_fixed():
    """Method `trainable-decay` is what SpikingJelly can do: its gradients are ours, in float64."""
    setting = contenders.setting_of(SMALL, method="trainable-decay")
    ours = equivalence.reference(contenders.network(setting))
    theirs = peers.rebuild(contenders.network(setting), "spikingjelly").double()
    x, y = contenders.inputs(setting, ours)
    for net in (ours, theirs):
        torch.nn.functional.cross_entropy(net(x.double()).mean(0), y).backward()
    for name in ("stem", "stage2.block1.shortcut", "stage3.block2.conv2"):
        a, b = (net.get_submodule(name).synapse.weight.grad for net in (ours, theirs))
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_convolution_list_is_the_networks_own():
    seen = []
    original = torch.nn.functional.conv2d

    def counted(x, weight, *rest, **options):
        seen.append(tuple(weight.shape))
        return original(x, weight, *rest, **options)

    step = contenders.convolutions(infer(SMALL))
    torch.nn.functional.conv2d = counted
    try:
        step()
    finally:
        torch.nn.functional.conv2d = original
    net = contenders.network(SMALL)
    assert sorted(seen) == sorted(tuple(m.weight.shape) for m in net.modules() if isinstance(m, torch.nn.Conv2d))


def process(name, rounds, peak):
    made = compare.Process(name, None, rounds)  # type: ignore[arg-type]
    made.last = {"peak": peak, "before": 100}
    made.ready = {"losses": [1.0], "first_s": 1.0, "start_s": 2.0}
    return made


def record(agrees=True):
    running = {
        "native": process("native", [[0.1, 0.2, 0.3], [0.2, 0.2, 0.2]], 1000),
        "ann": process("ann", [[0.3, 0.4, 0.5], [0.5, 0.5, 0.5]], 2500),
    }
    agreement = {n: {"agrees": True, "how": "", "differ": 0.0, "worst": 0.0} for n in running}
    agreement["ann"]["agrees"] = agrees
    return {
        "what": "mpd-agl bench train",
        "setting": SMALL.to_dict(),
        "rounds": 2,
        "contenders": {n: compare.summary(p, 4, agreement[n]) for n, p in running.items()},
        "ratios": compare.ratios(running, agreement),
        "left_out": {"snntorch": "it is not installed; pip install -e .[bench] brings it"},
        "load_before": 0.0,
        **compare.provenance(),
    }


def test_ratios_are_medians_over_rounds_of_the_same_round():
    found = record()["ratios"]["of"]["ann"]
    assert found == {"time": pytest.approx(2.25), "range": [pytest.approx(2.0), pytest.approx(2.5)], "peak_memory": 2.5}
    assert record()["contenders"]["native"]["ms_per_image"] == pytest.approx(50.0)


def test_no_ratio_where_outputs_differ_and_absent_peers_are_named():
    text = show.table(record(agrees=False))
    line = next(line for line in text.splitlines() if line.startswith("ann "))
    assert "outputs differ" in line
    assert "2.2" not in line
    assert "snntorch: left out, it is not installed" in text
    assert "2.25" in show.table(record())


WORKER = """
import json, sys
say = lambda **answer: print(json.dumps(answer), flush=True)
say(losses=[1.0])
for number, line in enumerate(sys.stdin):
    if number == 1 and sys.argv[1] == "fails":
        say(error="MemoryError: none")
    elif number == 1 and sys.argv[1] == "dies":
        sys.exit(9)
    else:
        say(times=[9.0], peak=2, before=1)
"""


@pytest.mark.parametrize(("how", "why"), [("fails", "MemoryError: none"), ("dies", "its process ended with code 9")])
def test_a_contender_that_dies_in_a_round_is_left_out_and_the_others_stay(monkeypatch, how, why):
    def start(name, setting, what):
        command = [sys.executable, "-c", WORKER, how if name == "eager" else "lives"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(child):
        child.communicate()
        return {"agrees": True}

    monkeypatch.setattr(compare, "start", start)
    monkeypatch.setattr(compare, "once", once)
    monkeypatch.setattr(compare, "why_not", lambda name, setting: None)
    monkeypatch.setattr(compare, "summary", lambda process, batch, agreement: process.rounds)
    found = compare.compare(SMALL, ["eager", "native"], rounds=1, note=lambda text: None)
    assert found["left_out"] == {"eager": why}
    assert found["contenders"] == {"native": [[9.0]]}
    assert list(found["ratios"]["of"]) == ["native"]
    with pytest.raises(InputError, match=why):
        compare.compare(SMALL, ["eager"], rounds=1, note=lambda text: None)


def test_figures_are_drawn():
    assert draw.svg_file(plot.bars(record())).startswith(b"<?xml")
    one = record()
    points = [
        {"axis": axis, "value": v, "setting": one["setting"], "contenders": one["contenders"]}
        for axis in ("num_steps", "width_mult")
        for v in (1, 2, 16)
    ]
    assert b"memory of a step" in draw.svg_file(plot.curves({"points": points}))
    assert growth.ends({"points": points})[0][:3] == ("native", 2, 16)


def test_a_sweep_moves_one_axis_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    sweep = growth.points(SMALL, ["num_steps", "batch", "width_mult"])
    assert [v for a, v, _ in sweep if a == "batch"] == [2, 4, 16, 64, 256]
    assert [v for a, v, _ in growth.points(infer(SMALL), ["batch"])] == [1, 4, 16, 64, 256]
    assert {s.num_steps for a, _, s in sweep if a != "num_steps"} == {2}
    asked = []

    def measured(setting, names, **options):
        asked.append(setting.num_steps)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return record()

    monkeypatch.setattr(growth, "compare", measured)
    out = tmp_path / "growth.json"
    options = {"rounds": 1, "quick": True, "out": out, "note": lambda text: None}
    with pytest.raises(KeyboardInterrupt):
        growth.grow(SMALL, ["num_steps"], ["native"], **options)
    assert [p["value"] for p in json.loads(out.read_text())["points"]] == [1, 2]
    growth.grow(SMALL, ["num_steps"], ["native"], **options)
    assert asked == [1, 2, 4, 4, 8, 16]
    with pytest.raises(InputError, match="holds another measurement"):
        growth.grow(infer(SMALL), ["num_steps"], ["native"], **options)


def test_one_real_comparison(tmp_path, capsys):
    out = tmp_path / "record.json"
    argv = ["bench", "infer", "--model", "cnn8", "--width-mult", "0.0625", "--image-size", "8", "--batch", "2"]
    argv += ["--quick", "--threads", "1", "--contenders", "eager", "-o", str(out)]
    assert main(argv) == 0
    found = json.loads(out.read_text())
    assert from_dict(found["setting"]).work == "infer"
    assert found["ratios"]["base"] == "eager"
    assert found["contenders"]["eager"]["agreement"]["agrees"]
    assert found["contenders"]["eager"]["timed"] >= 2
    assert "time / eager" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "--contenders", "natve"], "Did you mean 'native'"),
        (["train", "--model", "resnet-19"], "Did you mean 'resnet19'"),
        (["train", "--batch", "1"], "--batch 2"),
        (["train", "--rounds", "0"], "--rounds must be at least 1"),
        (["infer", "--width-mult", "0"], "width_mult must be positive"),
        (["growth", "--axes", "steps"], "unknown axis 'steps'"),
        (["train", "-o", "/no/such/folder/a.json"], "is not there"),
        (["train", "--plot", "a.png"], ".svg or .pdf"),
    ],
)
def test_mistakes_are_told_in_a_sentence(argv, said, capsys):
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err


def test_contenders_are_listed(capsys):
    assert command.run(["--list"]) == 0
    assert "spikingjelly" in capsys.readouterr().out


def test_the_page_says_what_was_asked_what_came_and_what_is_missing(tmp_path):
    narrow = record()
    narrow["setting"] |= {"width_mult": 0.125, "batch": 100, "image_size": 0}
    narrow["contenders"]["convs"] = narrow["contenders"]["native"]
    narrow["ratios"]["of"]["convs"] = {"time": 0.8, "range": [0.75, 0.85], "peak_memory": 0.9}
    narrow["ratios_auto"] = {
        "base": "native+auto",
        "of": {"ann": {"time": 1.25, "range": [1.0, 1.6], "peak_memory": 2.0}},
    }
    (tmp_path / "train-narrow.json").write_text(json.dumps(narrow))
    (tmp_path / "train-full.json").write_text(json.dumps(narrow))  # of another setting than its name says
    assert main(["bench", "page", "--records", str(tmp_path), "-o", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert (
        "| the same | the ANN, batch T*N | at most 0.7x its time | 0.44x (0.40 to 0.50) | **0.80x (0.62 to 1.00)** |  |"
        in page
    )
    assert (
        "| the same | its convolutions alone | at most 1.25x its time | 1.25x (1.18 to 1.33) | not measured |  |"
        in page
    )
    assert "| at least 2.5x faster | not measured | not measured | not in the record, or of another setting |" in page
    assert "| at least 1.18x faster | not measured | not measured | not in the record, or of another setting |" in page
    assert "| at least 2.2x faster | not measured | not measured | no train-vggsnn.json |" in page
    assert (tmp_path / "train-narrow.svg").is_file()


def test_a_page_without_records_is_refused(tmp_path, capsys):
    assert main(["bench", "page", "--records", str(tmp_path), "-o", str(tmp_path / "page.md")]) == 2
    assert "tools/measure_performance.sh" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_the_page_shows_the_paths_of_a_trained_network(tmp_path):
    early = [{"threshold": 0.8, "accuracy": 0.982, "mean_steps": 1.0574, "ms_per_image": 0.5}]
    found = {"num_steps": 4, "accuracy": 0.98, "loss": 0.1, "samples": 1000, "early": early}
    said = {
        "results": [found],
        "config": {"model": {"name": "cnn8", "width_mult": 0.25}, "data": "mnist5k"},
        "threads": 2,
        **compare.provenance(),
    }
    for name in ("plain", "int8", "early"):
        (tmp_path / f"evaluate-{name}.json").write_text(json.dumps(said))
    assert main(["bench", "page", "--records", str(tmp_path), "-o", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| int8 | 98.00 % | 0.10000 | 1000 |" in page
    assert "| 0.8 | 98.20 % | 1.057 | 0.500 |" in page
    assert "not measured | no train-narrow.json" in page
