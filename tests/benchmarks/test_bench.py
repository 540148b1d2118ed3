"""`python -m benchmarks`: who computes what others do, what a ratio needs, what is left out. No test times anything."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from benchmarks import command, compare, contenders, equivalence, growth, overview, peers, timing
from benchmarks.workload import Workload
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock

SMALL = Workload(width_mult=0.0625, batch=4, image_size=16, threads=1)
MODELS = [SMALL, Workload(model="vggsnn", width_mult=0.0625, num_steps=3, batch=4, image_size=16, threads=1)]


def infer(setting):
    return replace(setting, work="infer")


@pytest.mark.parametrize("setting", [*MODELS, *map(infer, MODELS)], ids=lambda s: f"{s.work}-{s.model}")
@pytest.mark.parametrize("name", ["mpd_agl", "native", "recompute", "eager", "spikingjelly", "snntorch"])
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
def test_spikingjelly_gives_the_same_gradients_where_the_width_is_fixed():
    """Method `trainable-decay` is what SpikingJelly can do: its gradients are the same in float64."""
    setting = replace(SMALL, method="trainable-decay")
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
        "what": "python -m benchmarks train",
        "setting": SMALL.to_dict(),
        "rounds": 2,
        "contenders": {n: compare.summary(p, 4, agreement[n]) for n, p in running.items()},
        "ratios": compare.ratios(running, agreement),
        "left_out": {"snntorch": "it is not installed; pip install -e .[bench] brings it"},
        "load_before": 0.0,
        "slowdown": [1.0, 1.1],
        **compare.provenance(),
    }


def test_ratios_are_medians_over_rounds_of_the_same_round():
    found = record()["ratios"]["of"]["ann"]
    assert found == {
        "time": pytest.approx(2.25),
        "range": [pytest.approx(2.0), pytest.approx(2.5)],
        "best": pytest.approx(3.0),
        "peak_memory": 2.5,
    }
    assert record()["contenders"]["native"]["ms_per_image"] == pytest.approx(50.0)


def test_no_ratio_where_outputs_differ_and_absent_peers_are_named():
    text = compare.text(record(agrees=False))
    line = next(line for line in text.splitlines() if line.startswith("ann "))
    assert "outputs differ" in line
    assert "2.2" not in line
    assert "snntorch: left out, it is not installed" in text
    assert "2.25" in compare.text(record())


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


def test_growth_is_the_ratio_of_its_ends():
    one = record()
    points = [
        {"axis": axis, "value": v, "setting": one["setting"], "contenders": one["contenders"]}
        for axis in ("num_steps", "width_mult")
        for v in (1, 2, 16)
    ]
    assert growth.ends({"points": points})[0][:3] == ("native", 2, 16)


def test_a_sweep_moves_one_axis_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    sweep = growth.points(SMALL, ["num_steps", "batch", "width_mult"])
    assert [v for a, v, _ in sweep if a == "batch"] == [2, 4, 16, 64, 256]
    assert [v for a, v, _ in growth.points(infer(SMALL), ["batch"])] == [1, 4, 16, 64, 256]
    assert {s.num_steps for a, _, s in sweep if a != "num_steps"} == {2}
    assert [v for a, v, _ in sweep if a == "width_mult"] == [0.125, 0.25, 0.5, 1.0]
    assert len(growth.points(SMALL, list(growth.AXES), quick=True)) == 8
    asked = []

    def measured(setting, names, **options):
        asked.append(setting.num_steps)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return record()

    monkeypatch.setattr(growth, "compare", measured)
    out = tmp_path / "growth.json"
    options = {"rounds": 1, "out": out, "note": lambda text: None}
    with pytest.raises(KeyboardInterrupt):
        growth.grow(SMALL, ["num_steps"], ["native"], **options)
    assert [p["value"] for p in json.loads(out.read_text())["points"]] == [1, 2]
    growth.grow(SMALL, ["num_steps"], ["native"], **options)
    assert asked == [1, 2, 4, 4, 8, 16]
    with pytest.raises(InputError, match="holds another measurement"):
        growth.grow(infer(SMALL), ["num_steps"], ["native"], **options)


def test_one_real_comparison(tmp_path, capsys):
    out = tmp_path / "record.json"
    argv = ["infer", "--model", "cnn8", "--width-mult", "0.0625", "--image-size", "8", "--batch", "2"]
    argv += ["--quick", "--threads", "1", "--contenders", "eager", "-o", str(out)]
    assert command.run(argv) == 0
    found = json.loads(out.read_text())
    assert Workload.from_dict(found["setting"]).work == "infer"
    assert found["ratios"]["base"] == "eager"
    assert found["contenders"]["eager"]["agreement"]["agrees"]
    assert found["contenders"]["eager"]["timed"] >= 2
    assert "time over eager" in capsys.readouterr().out


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
        (["train", "--release", "/no/such/folder"], "holds no package mpd_agl"),
        (["gpu", "--device", "tpu"], "--device must be auto, cuda or cpu"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(argv, said):
    with pytest.raises(InputError, match=re.escape(said)):
        command.run(argv)


def test_another_installation_runs_by_its_public_names(tmp_path):
    """Its own package is found before this tree's; a loss that differs gets no ratio."""
    other = tmp_path / "mpd_agl"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "models.py").write_text(
        "import torch, types\n"
        "class Net(torch.nn.Module):\n"
        "    options = types.SimpleNamespace(in_channels=3, image_size=8, num_classes=10)\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(192, 10)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x.flatten(1)).unsqueeze(0)\n"
        "def create_model(name, **options):\n"
        "    return Net()\n"
    )
    setting = replace(SMALL, model="cnn8", image_size=8, release=str(tmp_path))
    found = compare.compare(setting, ["native", "release"], rounds=1, quick=True, note=lambda text: None)
    assert not found["left_out"]
    assert not found["contenders"]["release"]["agreement"]["agrees"]
    assert found["ratios"]["of"]["release"] is None
    assert str(tmp_path) not in json.dumps(found)
    same = {"native": process("native", [[1.0]], 1), "release": process("release", [[1.0]], 1)}
    same["release"].ready = {"losses": [1.0005]}
    assert compare.same_first_loss(same)["agrees"]
    same["release"].ready = {"losses": [1.002]}
    assert not compare.same_first_loss(same)["agrees"]
    assert contenders.why_not("release", SMALL) == "name its folder with --release FOLDER"


def test_a_busy_machine_is_told_by_a_loop_that_is_slower_than_its_best(monkeypatch):
    assert timing.slowdowns([[2.0, 2.0], [2.0, 4.0], [1.0, 1.0]]) == [2.0, 3.0, 1.0]
    assert timing.slowdowns([]) == []
    one = record()
    assert "busy" not in compare.text(one)
    assert "took up to 1.60 times its best in 2 of 3 pauses" in compare.text({**one, "slowdown": [1.3, 1.0, 1.6]})
    assert "busy" not in compare.text({**one, "load_before": 9.0})  # that may be the round before
    clock = iter([0, 1, 0, 2, 0, 4, 0, 9, *(0, 4) * 7, 0, 8])
    monkeypatch.setattr(timing, "SAMPLE_S", 4)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    loop = timing.FixedLoop(threads=2)
    assert loop.repeats == 4  # doubled until a sample takes long enough
    loop()
    assert loop.seconds == [[4] * 7 + [8]]  # the first sample, 9, warms up
    assert loop.slowdowns() == [36 / 8 / 4]


def test_contenders_are_listed(capsys):
    assert command.run(["--list"]) == 0
    assert "spikingjelly" in capsys.readouterr().out


def test_every_work_and_contender_is_known():
    for setting, names in overview.WORKS.values():
        workload = Workload(**setting)
        assert all(workload.work in contenders.CONTENDERS[name].works for name in names)
        assert set(names) <= set(overview.LABELS)
        assert names[0] == "mpd_agl"


def test_a_line_says_time_ratio_range_best_and_memory():
    found = record()
    assert overview.cell(found, "ann") == "  125.00 ms   2.25x (2.00 to 2.50), best 3.00x, 0 MB"
    assert overview.cell(found, "snntorch") == "left out"
    assert overview.cell(found, "convs") == ""
    assert overview.cell(record(agrees=False), "ann") == "outputs differ"
    whole = {"works": {"one image": found}, "seconds": 61.2, "hardware": {"cpu": "a processor", "cores": 2}}
    text = overview.text(whole)
    assert "ANN at batch T*N" in text
    assert "The machine was quiet" in text
    assert text.endswith("Measured in 61 s.")
    found["slowdown"] = [1.0, 1.6]
    assert "The machine was busy: a fixed loop took up to 1.60 times its best in 1 of 2 pauses" in overview.text(whole)
