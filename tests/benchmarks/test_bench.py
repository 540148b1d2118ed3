"""`mpd-agl bench`: who computes what others do, what a ratio needs, what is left out. No test times anything."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from benchmarks.workload import Workload

from benchmarks import compare, contenders, equivalence, growth, peers, plot, timing
from mpd_agl.cli import bench as command
from mpd_agl.cli import completion, main
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock
from mpd_agl.report import draw

SMALL = Workload(width_mult=0.0625, batch=4, image_size=16, threads=1)
MODELS = [SMALL, Workload(model="vggsnn", width_mult=0.0625, num_steps=3, batch=4, image_size=16, threads=1)]


def infer(setting):
    return replace(setting, work="infer")


@pytest.mark.parametrize("setting", [*MODELS, *map(infer, MODELS)], ids=lambda s: f"{s.work}-{s.model}")
@pytest.mark.parametrize("name", ["ours", "native", "eager", "spikingjelly", "snntorch"])
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
        "what": "mpd-agl bench train",
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
    assert [v for a, v, _ in sweep if a == "width_mult"] == [0.125, 0.25, 0.5, 1.0]
    assert [v for _, v, _ in growth.points(infer(SMALL), ["batch"], largest=20)] == [1, 4, 16, 20]
    assert [v for _, v, _ in growth.points(SMALL, ["batch"], largest=2)] == [2]
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
    argv = ["bench", "infer", "--model", "cnn8", "--width-mult", "0.0625", "--image-size", "8", "--batch", "2"]
    argv += ["--quick", "--threads", "1", "--contenders", "eager", "-o", str(out)]
    assert main(argv) == 0
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
        (["train", "--plot", "a.png"], ".svg or .pdf"),
    ],
)
def test_mistakes_are_told_in_a_sentence(argv, said, capsys):
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("work", "own"), [("train", "--contenders"), ("growth", "--axes"), ("active", "--rates")])
def test_each_subcommand_has_its_own_help(work, own, capsys):
    with pytest.raises(SystemExit):
        main(["bench", work, "--help"])
    said = capsys.readouterr().out
    assert [o for o in ("--contenders", "--axes", "--rates") if o in said][-1] == own


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize(
    ("words", "offered"), [("bench gro", "growth"), ("bench growth --ax", "--axes"), ("info --j", "--json")]
)
def test_completion_knows_subcommands(words, offered):
    ask = f'COMP_WORDS=(mpd-agl {words}); COMP_CWORD={len(words.split())}; _mpd_agl; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", completion.script() + ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [offered]


def test_methods_are_timed_side_by_side(monkeypatch, capsys):
    from benchmarks.contenders import build
    from benchmarks.workload import LOSSES

    from benchmarks import methods

    small = Workload(model="cnn8", width_mult=0.0625, batch=4, image_size=16, threads=1)
    for loss in LOSSES:
        work = build("eager", replace(small, method="stbp-tdbn", loss=loss))
        assert work() > 0
    for field, values in methods.PARTS.items():
        for value in values:
            assert build("eager", replace(small, **{field: value}))() > 0
    monkeypatch.setattr(methods, "GROUP", 2)
    asked = ["trsg", "s2nn", "norm=tab", "+distill"]
    record = methods.measure(small, asked, rounds=1, quick=True, note=lambda text: None)
    assert list(record["rows"]) == ["mpd-agl", *asked]
    base = record["rows"]["mpd-agl"]
    assert (base["time"], base["peak_memory"], base["num_steps"]) == (1.0, 1.0, 2)
    assert (record["rows"]["s2nn"]["num_steps"], record["rows"]["+distill"]["method"]) == (1, "stbp-tdbn")
    shown = methods.text(record).splitlines()
    assert [line.split()[0] for line in shown[2:7]] == list(record["rows"])
    assert main(["bench", "methods", "--rows", "norm=layer"]) == 2
    assert "unknown row 'norm=layer'" in capsys.readouterr().err
    assert main(["bench", "methods", "--rows", "+mse"]) == 2
    assert "loss" in capsys.readouterr().err
