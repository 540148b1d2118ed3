"""The paper's experiments: what they train, and that every number shown is a record's.

Most runs here are written by hand.
"""

import json
import os
import signal
import statistics
import subprocess
import sys

import pytest

from experiments.command import run
from experiments.grouped_bars import colour, style_of
from experiments.pool import Pool, run_name
from experiments.quoted import TABLE1
from experiments.request import Request, check_before_training
from experiments.result import command, gather, set_by_hand, show, summary, write
from experiments.rivals import TITLES
from experiments.scales import SCALES, departures
from experiments.studies import NAMES, get_study
from experiments.study import label
from experiments.table1 import RIVALS
from mpd_agl.cli import main
from mpd_agl.core import mpd
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.train.resolve import rule_facts
from mpd_agl.train.signals import EXIT_SAVED
from tests.report import runfolder

LAYERS = [
    *("stem", "stage1.block1.conv1", "stage1.block1.conv2", "stage1.block2.conv1", "stage1.block2.conv2"),
    *("stage1.block3.conv1", "stage1.block3.conv2", "stage2.block1.conv1", "stage2.block1.shortcut", "fc1"),
]


def accuracy(method, seed):
    return round(0.5 + 0.001 * len(method) + 0.01 * seed * (1 + len(method) % 3), 4)


@pytest.fixture(scope="module")
def rates():
    """Input rates 0.1 for every layer of ResNet-19."""
    from mpd_agl.diagnosis.operations import synapses

    names = list(synapses(create_model("resnet19", width_mult=0.0625)))
    return [{"name": n, "rate_in": 0.1, "values_in": "binary"} for n in names]


@pytest.fixture
def by_hand(monkeypatch, rates):
    """`Pool.train` writes a finished run with known numbers in place of training."""

    def train(pool, config, display):
        n = config.train.epochs
        T = config.model.num_steps
        score = accuracy(config.method, config.seed)
        events = []
        for e in range(1, n + 1):
            layers = {}
            for i, name in enumerate(LAYERS):
                layer = runfolder.layer(i, 10 * e, detail=True)
                for key in [k for k in layer if k.endswith("_T")]:
                    layer[key] = (layer[key] * T)[:T]
                layer["available_T"] = [0.4 + 0.01 * i + 0.001 * len(config.method)] * T
                layer["input_var"], layer["input_mean"] = 0.2, layer["predicted_mean_T"][0] + 1e-9
                layers[name] = layer
            events.append({"log": "monitor", "step": 10 * e - 9, "epoch": e, "layers": layers})
            scores = {**runfolder.epoch(1), "epoch": e, "step": 10 * e, "test_accuracy": score + 0.1 * (e < n)}
            events.append({**scores, "train_s": 2.0, "test_s": 0.5})
        table = runfolder.record(pool.path(config).name)
        final = {k: events[-1][k] for k in table["final"]}
        table |= {"config": config.model_dump(mode="json"), "final": final, "best_on_test": None}
        table["data"]["name"] = config.data.name
        table["energy"] = {"rates_from": "by hand", "layers": rates}
        table["hardware"]["threads"] = 1
        table["network"] |= rule_facts(config)
        runfolder.write(pool.path(config), json.loads(json.dumps(table)), events)

    monkeypatch.setattr(Pool, "train", train)


def request(name, scale="smoke", seeds=1, methods=None, **changes):
    study = get_study(name)
    changes = {k.replace("__", "."): v for k, v in changes.items()}
    return Request(study=study, scale=scale, seeds=seeds, methods=tuple(methods or study.methods), changes=changes)


def train(asked, pool):
    return pool.train_all(asked.configs(), lambda: None, lambda text: None, partial=asked.study.partial)


def result(asked, folder):
    pool = Pool(folder)
    train(asked, pool)
    groups = gather(asked, pool)
    return groups, show(asked, groups)


def rows(section):
    return [dict(zip(section.table.head, row, strict=True)) for row in section.table.rows]


def test_every_study_shows_every_method_it_trained(by_hand, tmp_path):
    for name in NAMES:
        asked = request(name)
        groups, section = result(asked, tmp_path / "pool")
        files = write(asked, groups, section, tmp_path / "out")
        assert {f.suffix for f in files} >= {".md", ".json"}
        assert all(f.stat().st_size for f in files)
        drawn = int(not name.startswith("table"))
        assert len(section.panels) == {"fig-affine": 4, "fig-robustness": 2}.get(name, drawn)
        told = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        first = asked.methods[0]
        assert told["command"].startswith(f"python -m experiments {name} --scale smoke --seeds 1 --methods {first}")
        assert all((tmp_path / "pool" / c["runs"]["0"] / "record.json").is_file() for c in told["cells"])
        if asked.study.protocol:
            continue
        extra = {v.method for v in RIVALS} if name == "table1" else set()
        assert {c["method"] for c in told["cells"]} == set(asked.methods) | extra
        assert any("Departs from the paper" in note for note in section.notes)
        if name == "fig-theorem1":
            again = {f.name: f.read_bytes() for f in files}
            write(asked, groups, show(asked, gather(asked, Pool(tmp_path / "pool"))), tmp_path / "out")
            assert again == {f.name: f.read_bytes() for f in files}


def test_mean_spread_and_paired_differences(by_hand, tmp_path):
    _, section = result(request("table3", seeds=3, methods=["lsg", "mpd-agl"]), tmp_path)
    lsg, mpd = rows(section)
    own = [100 * accuracy("lsg", s) for s in range(3)]
    top = [100 * accuracy("mpd-agl", s) for s in range(3)]
    assert lsg["CIFAR-10 (mnist5k)"] == f"{statistics.mean(own):.2f} ± {statistics.stdev(own):.2f}"
    gaps = [a - b for a, b in zip(top, own, strict=True)]
    half = 4.302653 * statistics.stdev(gaps) / 3**0.5  # Student's t, 2 degrees of freedom, 97.5 %
    middle = statistics.mean(gaps)
    assert lsg["MPD-AGL minus this"] == f"{middle:+.2f} [{middle - half:+.2f}, {middle + half:+.2f}]"
    assert mpd["MPD-AGL minus this"] == ""
    assert (lsg["paper, CIFAR-10 (quoted)"], mpd["paper, CIFAR-100 (quoted)"]) == ("94.41", "78.84")
    assert lsg["CIFAR-10 (mnist5k), best on test"].startswith(f"{statistics.mean(own) + 10:.2f}")


def test_table3_says_where_rows_have_unequal_numbers_of_seeds(by_hand, tmp_path):
    result(request("table3", seeds=2, methods=["lsg", "mpd-agl"]), tmp_path)
    result(request("table3", seeds=3, methods=["mpd-agl"]), tmp_path)
    asked = request("table3", seeds=3, methods=["lsg", "mpd-agl"])
    section = show(asked, gather(asked, Pool(tmp_path)))
    assert ", 2 to 3 seeds, " in section.sentence
    assert any("LSG on CIFAR-10 (mnist5k) 2, MPD-AGL on CIFAR-10 (mnist5k) 3" in note for note in section.notes)
    gaps = [100 * (accuracy("mpd-agl", s) - accuracy("lsg", s)) for s in range(2)]  # over the seeds of both
    assert rows(section)[0]["MPD-AGL minus this"].startswith(f"{statistics.mean(gaps):+.2f} [")


def test_energy_of_the_full_size_network(by_hand, tmp_path):
    _, section = result(request("table2"), tmp_path)
    ann, *found = rows(section)
    assert (ann["#Add., M"], ann["#Multi., M"], ann["mJ"]) == ("2285.37", "2285.37", "10.51")
    ours = {r["T"]: r for r in found if r["method"] == "MPD-AGL"}
    assert {T: r["#Multi., M"] for T, r in ours.items()} == {"2": "7.08", "4": "14.17", "6": "21.25"}
    hidden = 2285.373952 - 7.083008 / 2  # millions; the rest are stem and readout
    assert {T: r["#Add., M"] for T, r in ours.items()} == {str(T): f"{0.1 * T * hidden:.2f}" for T in (2, 4, 6)}
    assert (ours["4"]["paper #Add. (quoted)"], ours["4"]["paper mJ (quoted)"]) == ("1004.70", "0.96")


def test_table1_has_the_papers_rows_beside_ours(by_hand, tmp_path):
    _, section = result(request("table1"), tmp_path)
    found = rows(section)
    quoted = [r for r in found if r["source"] == "quoted"]
    assert len(quoted) == len(TABLE1) == 32
    assert not any(r["accuracy, last epoch"] for r in quoted)
    star = next(r for r in found if r["method"] == "MPD-AGL*" and r["source"] == "here")
    assert star["paper (quoted)"] == ""  # the run has 6 steps, the paper's 10
    ours = [(r["data"], r["T"]) for r in found if r["method"] == "MPD-AGL" and r["source"] == "here"]
    assert ours == [
        *((f"{data} (mnist5k)", T) for data in ("CIFAR-10", "CIFAR-100") for T in "642"),
        ("CIFAR10-DVS (mnist5k-dvs)", "6"),
        ("Tiny-ImageNet (mnist5k-dvs)", "4"),
    ]
    here = {r["method"]: r for r in found if r["source"] == "here"}
    assert {TITLES.get(v.at["rival"]) or label(v.method) for v in RIVALS} <= set(here)
    assert here["Offline LTL"]["MPD-AGL minus this"] == ""  # it has more steps than MPD-AGL there
    assert here["S3NN's surrogate"]["T"] == "1"
    tab = next(r for r in found if r["method"] == "TAB" and r["source"] == "here")
    assert (tab["data"], tab["T"], tab["paper (quoted)"]) == ("CIFAR-10 (mnist5k)", "2", "94.73")
    assert {r["network"] for r in found if r["method"] == "TCJA"} == {"MS-ResNet-18", "VGGSNN"}
    assert not {"ShortcutBP", "S3NN"} & set(here)  # what is not the system itself does not have its name
    tiny = next(r for r in found if r["data"].startswith("Tiny") and r["method"] == "MPD-AGL")
    assert tiny["paper (quoted)"] == "58.14"


def test_rivals_are_compared_by_seed(by_hand, tmp_path):
    methods = ["mpd-agl", "stbp-tdbn", "slope-schedule"]
    _, section = result(request("rivals", seeds=3, methods=methods), tmp_path)
    ours, fixed, slope = rows(section)
    assert (ours["minus MPD-AGL"], ours["within 1.5 points"]) == ("", "")
    assert (fixed["minus MPD-AGL"][:5], fixed["within 1.5 points"]) == ("-0.80", "yes")  # 51.9 and 52.7 %
    assert (slope["minus MPD-AGL"][:5], slope["within 1.5 points"]) == ("+1.70", "no")
    assert section.sentence.startswith("1 of 2 rivals")
    everyone = {v.at["rival"]: v for v in request("rivals", "cpu").variants()}
    assert {"mpbn", "tab", "tcja", "statten", "ltl", "robust", *get_study("rivals").methods} <= set(everyone)
    configs = {v.at["rival"]: request("rivals", "cpu").config(v, 0) for v in everyone.values()}
    assert {c.train.epochs for c in configs.values()} == {12}
    assert (configs["diet"].optim.name, configs["s2nn"].model.num_steps, configs["tab"].model.norm) == (
        "adam",
        1,
        "tab",
    )


def test_what_a_run_builds_on_is_named_by_its_configuration(tmp_path):
    pool = Pool(tmp_path)
    configs = {c.loss.name: c for c in request("table1").configs()}
    for name in ("ltl", "distill"):
        ((field, teacher),) = pool.needed_by(configs[name]).items()
        assert (field, teacher.model.ann, teacher.loss.name) == ("loss.teacher", True, "ce")
    ((field, first),) = pool.needed_by(configs["robust"]).items()
    assert (field, first.model.ann, first.loss.name) == ("model.weights", False, "ce")
    placed = configs["ltl"].model_copy(update={"loss": configs["ltl"].loss.model_copy(update={"teacher": "/anywhere"})})
    assert run_name(placed) == run_name(configs["ltl"])  # a folder is no part of a configuration's name
    assert pool.needed_by(placed) == {}


def test_availability_counts_layers_from_records(by_hand, tmp_path):
    _, section = result(request("fig-availability", methods=["stbp-tdbn", "mpd-agl"]), tmp_path)
    stbp, mpd = rows(section)
    main = [i for i, name in enumerate(LAYERS) if not name.endswith("shortcut")]
    want = 0.4 + 0.007 + 0.01 * sum(main) / len(main)
    assert mpd["available, mean"] == f"{100 * want:.1f}\N{NO-BREAK SPACE}%"
    assert mpd["available, layer 7"] == f"{100 * (0.4 + 0.007 + 0.06):.1f}\N{NO-BREAK SPACE}%"
    assert "higher in 0 of 9 layers than STBP-tdBN's" in section.sentence
    assert stbp["training loss"] == "1.000"


def test_theorem1_tells_the_gap(by_hand, tmp_path):
    _, section = result(request("fig-theorem1"), tmp_path)
    first = rows(section)[0]
    gamma = 1 - 0.002 * 20 / 10  # the first layer's at the last snapshot
    assert first["gap, %"] == f"{100 * ((gamma * 0.5) ** 2 / 0.2 - 1):+.1f}"
    assert float(first["largest gap"]) == pytest.approx(1e-9, rel=0.01)


def test_time_is_scaled_to_the_whole_set(by_hand, tmp_path):
    _, section = result(request("table4", seeds=1), tmp_path)
    first = rows(section)[0]
    assert first["training, s"] == f"{2.0 * 50_000 / 4_000:.1f}"  # the record says 4,000 training samples
    assert first["inference, s"] == f"{0.5 * 10_000 / 1_000:.1f}"


@pytest.mark.parametrize("scale", SCALES)
def test_all_configurations_resolve_and_runs_are_shared(scale):
    names = {name: {run_name(c) for c in request(name, scale).configs()} for name in NAMES}
    assert names["fig-availability"] == names["fig-firing-rate"] <= names["table2"]
    # On a CPU Table 3 takes all images, as docs/evidence.md says.
    assert (names["fig-availability"] <= names["table3"]) == (scale != "cpu")


def test_departures_are_told_and_the_paper_departs_from_nothing():
    for name in NAMES:
        asked = request(name, "paper")
        assert departures(asked.variants(), asked.study, "paper", {}) == []
    asked = request("fig-theorem1", "cpu", data__name="nmnist")
    told = " ".join(departures(asked.variants(), asked.study, "cpu", asked.changes))
    for words in ("width_mult 0.125 instead of 1", "data set nmnist instead of cifar10dvs", "epochs 20 instead of 150"):
        assert words in told


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["table9"], "unknown experiment 'table9'"),
        ([], "no experiment is named"),
        (["table3", "--scale", "gpu"], "unknown scale 'gpu'"),
        (["table3", "--only", "data"], r"--only takes KEY=VALUE\[,VALUE\], got 'data'"),
        (["table3", "--only", "seed=0", "--only", "seed=1"], "each key once, got seed again"),
        (["table3", "--only", "dta=x"], "unknown condition of --only for table3 'dta'. Did you mean 'data'"),
        (["table3", "--only", "data=CIFAR10"], "unknown data of table3 at scale cpu 'CIFAR10'"),
        (["table3", "--only", "seed=3"], "unknown seed of table3 at scale cpu '3'"),
        (["--list", "--train.threads", "x"], "train.threads must be"),
        (["table3", "--scale", "smoke", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["table3", "--scale", "smoke", "--methods", "lsq"], "unknown method 'lsq'"),
        (["table3", "--scale", "smoke", "--methods", "lsg", "lsg"], "each method once"),
        (["table3", "--scale", "smoke", "--method", "lsg"], "Use --methods"),
        (["table3", "--scale", "smoke", "--model.width_mlt", "1"], "Did you mean --model.width_mult"),
        (["table3", "--scale", "smoke", "--overwrite"], "--overwrite is not an option of experiments"),
        (["fig-surrogates", "--scale", "smoke", "--methods", "asgl"], "has its own surrogate"),
        (["table3", "--scale", "smoke", "--draw"], "are not finished"),
    ],
)
def test_bad_input(argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        run(argv)
    assert not (tmp_path / "runs").exists()


def test_one_figure_compares_runs_on_one_data_set(by_hand, tmp_path):
    """At the smoke scale too, where the VGGs of Figure 7 need larger images than the digits have."""
    _, section = result(request("fig-robustness", methods=["lsg", "mpd-agl"]), tmp_path)
    assert [p.key for p in section.panels] == ["fig-robustness-neuron", "fig-robustness-network"]
    assert any("data set mnist5k-dvs instead of cifar100" in note for note in section.notes)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fig-robustness", "--methods", "lsg", "--data.name", "mnist5k"], "vgg11.* cannot start: .*32"),
        (["table3", "--train.batch-size", "300"], "cannot start: train.batch_size is 300, and mnist5k has 200"),
        (["table3", "--train.precision", "float16", "--train.device", "cpu"], "cannot start: .*needs a GPU"),
        (["table3", "--train.device", "tpu"], "cannot start: train.device must be a device that works here"),
        (["all", "--data.test-samples", "2000"], "cannot start: data.test_samples is 2000, and mnist5k.* has 1000"),
    ],
)
def test_what_can_be_refused_is_refused_before_anything_is_trained(argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pool, "train", lambda *args: pytest.fail("trained"))
    with pytest.raises(InputError, match=words):
        run([*argv, "--scale", "smoke"])
    assert not (tmp_path / "runs").exists()


def test_runs_on_different_samples_are_refused_before_anything_is_trained(tmp_path):
    from dataclasses import replace

    asked = request("fig-robustness", methods=["lsg"])
    mixed = replace(asked, study=replace(asked.study, smoke={}))  # VGGs on event frames, ResNets on images
    with pytest.raises(InputError, match="scored on different samples .mnist5k and mnist5k-dvs"):
        check_before_training([mixed], Pool(tmp_path))
    check_before_training([asked], Pool(tmp_path))


def test_a_foreign_run_in_the_pool_is_refused(by_hand, tmp_path):
    asked = request("fig-theorem1")
    result(asked, tmp_path)
    [path] = tmp_path.iterdir()
    table = json.loads((path / "record.json").read_text())
    table["config"]["model"]["tau"] = 0.3
    (path / "record.json").write_text(json.dumps(table))
    with pytest.raises(InputError, match="another configuration"):
        gather(asked, Pool(tmp_path))


def test_a_run_of_other_constants_is_refused(by_hand, tmp_path, monkeypatch):
    asked = request("fig-theorem1", methods=["mpd-gain"])
    result(asked, tmp_path)
    [path] = tmp_path.iterdir()
    rule = json.loads((path / "record.json").read_text())["network"]["rule"]
    assert rule == {"end_share": 0.005, "far_out": 2.0, "chain_growth": 30.0}
    monkeypatch.setattr(mpd, "FAR_OUT", 8.0)
    with pytest.raises(InputError, match=r"other constants \(.*far_out 2, .*today's: .*far_out 8, .*Move it away"):
        gather(asked, Pool(tmp_path))


def test_a_failed_run_does_not_stop_the_others_but_the_table(by_hand, tmp_path, monkeypatch):
    good = Pool.train

    def train(pool, config, display):
        if config.method == "lsg":
            pool.path(config).mkdir()
            (pool.path(config) / "config.toml").touch()
            raise InputError("training stopped: the loss is not finite.")
        good(pool, config, display)

    monkeypatch.setattr(Pool, "train", train)
    with pytest.raises(InputError, match="1 of 2 runs failed, so nothing is shown; .* The first: .*lsg.*not finite"):
        result(request("fig-availability", methods=["lsg", "mpd-agl"]), tmp_path)
    assert (tmp_path / run_name(request("fig-availability").configs()[2]) / "record.json").is_file()  # mpd-agl's


def test_data_that_are_not_there_stop_at_the_first_run(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cifar10-resnet19-t2-stbp-tdbn-s0-.* cannot start: "):
        run(["table3", "--scale", "cpu", "--data.data-dir", "empty", "--data.no-download"])


def test_stopped_continued_finished_and_drawn_again(tmp_path, monkeypatch, capsys):
    """The real thing: a signal in the middle, the same command again, then nothing is trained and the same is shown."""
    from mpd_agl.train.observe import Display

    monkeypatch.chdir(tmp_path)
    small = ["--data.train-samples", "40", "--data.test-samples", "20", "--train.threads", "1"]
    argv = ["fig-firing-rate", "--scale", "smoke", "--methods", "mpd-agl", "lsg", *small]
    seen = []

    def step(display, progress):
        seen.append(progress.step)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Display, "step", step)
    assert run(argv) == EXIT_SAVED
    assert "The same command continues." in capsys.readouterr().out
    assert run(argv) == 0
    first = capsys.readouterr().out
    assert "run 1 of 2 continues: mnist5k-resnet19-t2-mpd-agl-s0-" in first
    steps = len(seen)
    assert steps == 2 * 2 * 2  # two methods, two epochs, two steps; none twice
    assert run(argv) == 0
    again = capsys.readouterr().out
    assert len(seen) == steps
    assert "0 runs were trained now" in again
    assert first[first.index("Figure 4") :] == again[again.index("Figure 4") :]
    assert run([*argv, "--list"]) == 0
    assert "fig-firing-rate" in capsys.readouterr().out
    told = json.loads((tmp_path / "runs/experiments/smoke/fig-firing-rate.json").read_text())
    curve = next(c for c in told["curves"]["fig-firing-rate"] if c["name"] == "LSG")
    record = next(c["runs"]["0"] for c in told["cells"] if c["method"] == "lsg")
    lines = (tmp_path / "runs/experiments/pool" / record / "metrics.jsonl").read_text().splitlines()
    events = [e for e in map(json.loads, lines) if e["log"] == "monitor"]
    last = [e for e in events if e["epoch"] == 2] or events[-1:]
    want = [statistics.mean(statistics.mean(e["layers"][n]["rate_T"]) for e in last) for n in last[0]["layers"]]
    assert curve["y"] == pytest.approx(want, rel=1e-4)


def test_every_network_of_the_smoke_scale_fits_its_data():
    from mpd_agl.data.registry import get
    from mpd_agl.train.build import build_network

    seen = {}
    for name in NAMES:
        for c in request(name, methods=["stbp-tdbn", "mpd-agl"]).configs():
            events = get(c.data.name).kind == "events"
            seen[
                c.model.name, c.data.name, getattr(c.data, "frame_size", 0) if events else get(c.data.name).shape[0]
            ] = c
    assert len(seen) >= 6
    for (_, data, size), config in seen.items():
        build_network(config, in_channels=get(data).shape[2], image_size=size, num_classes=10)


@pytest.mark.parametrize("methods", [["lsg"], ["stbp-tdbn"]])
def test_a_picture_of_two_is_refused_before_anything_is_trained(methods):
    with pytest.raises(InputError, match="compares stbp-tdbn with another method"):
        request("idea", methods=methods)


def test_a_torn_record_is_not_a_finished_run(by_hand, tmp_path):
    asked = request("fig-theorem1")
    result(asked, tmp_path)
    [path] = tmp_path.iterdir()
    text = (path / "record.json").read_text()
    (path / "record.json").write_text(text[: len(text) // 2])
    assert not Pool(tmp_path).finished(asked.configs()[0])


@pytest.fixture
def one_diverges(monkeypatch):
    """`Pool.train` writes a run of known accuracy; MPD-AGL with seed 1 ends in NaN."""

    def write_run(pool, config, display):
        scores = {**runfolder.epoch(1), "test_accuracy": 0.8 + 0.01 * config.seed, "test_loss": 0.5}
        table = runfolder.record(pool.path(config).name)
        table |= {"config": config.model_dump(mode="json"), "best_on_test": None}
        table["final"] = {k: scores[k] for k in table["final"]}
        if config.method == "mpd-agl" and config.seed == 1:
            failure = "training stopped at epoch 1, step 2 of 9: loss nan."
            runfolder.write(
                pool.path(config),
                table | {"status": "failed", "final": None, "failure": failure, "failure_code": "not-finite"},
                [],
            )
            raise InputError(failure)
        runfolder.write(pool.path(config), table, [scores])

    monkeypatch.setattr(Pool, "train", write_run)


def table3(seeds=1, methods=("stbp-tdbn", "mpd-agl"), changes=None, **only):
    chosen = {key: tuple(values.split(",")) for key, values in only.items()}
    asked = {"study": get_study("table3"), "scale": "cpu", "seeds": seeds, "methods": methods}
    return Request(**asked, changes=changes or {}, only={"data": ("CIFAR-10",), **chosen})


def test_a_run_that_ends_in_nan_counts_as_chance_level_and_is_not_tried_again(one_diverges, tmp_path):
    asked, pool = table3(seeds=3), Pool(tmp_path)
    assert train(asked, pool) == 6
    assert train(asked, pool) == 0
    section = show(asked, groups := gather(asked, pool))
    fixed, follows = groups
    chance = 1 / len(follows.runs[0].record.data["classes"])
    assert fixed.accuracy == pytest.approx({0: 0.8, 1: 0.81, 2: 0.82})
    assert follows.accuracy == pytest.approx({0: 0.8, 1: chance, 2: 0.82})
    assert section.table.rows[1][1].endswith("\N{DAGGER}1")
    assert "Ended in NaN, counted as chance level: MPD-AGL (CIFAR-10)." in section.notes
    assert section.details.rows[1][4].startswith(f"{100 * (chance - 0.81) / 3:+.2f} [")
    assert json.loads(json.dumps(summary(asked, groups, section)))["cells"][1]["ended_in_nan"] == [1]


def test_a_part_is_shown_as_a_part(one_diverges, tmp_path):
    train(table3(seeds=3, seed="0", method="mpd-agl"), Pool(tmp_path))
    section = show(whole := table3(seeds=3), gather(whole, Pool(tmp_path)))
    assert "Not complete: 5 of 6 runs are not there yet." in section.notes
    assert [row[1] for row in section.details.rows] == ["MPD-AGL"]


def test_runs_of_another_number_of_threads_are_named(one_diverges, tmp_path):
    def asked(**changes):
        return table3(methods=("lsg",), changes={f"train.{k}": v for k, v in changes.items()})

    pool = Pool(tmp_path)
    train(asked(threads=1), pool)
    with pytest.raises(InputError, match=r"1 of those that are missing are there with --train.threads 1: add it\."):
        gather(asked(threads=2), pool)
    with pytest.raises(InputError, match=r"Train them by the same command without --draw\."):
        gather(asked(threads=2, epochs=1), pool)
    assert set_by_hand(asked(threads=1)) == []
    assert set_by_hand(asked(epochs=1)) == ["train.epochs 1"]
    assert set_by_hand(table3(changes={"data.augment": ["crop=4", "flip"]})) == ["data.augment crop=4 flip"]


def test_weights_to_start_from_are_part_of_a_run(one_diverges, tmp_path):
    def asked(weights, methods=("lsg",)):
        return table3(methods=methods, changes={"model.weights": weights} if weights else {})

    drawn, begun, pool = asked(""), asked("cifar10"), Pool(tmp_path)
    train(drawn, pool)
    assert [pool.finished(c) for c in drawn.configs()] == [True]
    assert [pool.finished(c) for c in begun.configs()] == [False]
    assert command(begun).endswith("--model.weights cifar10")
    train(begun, pool)
    with pytest.raises(InputError, match="began with another version of the weights 'cifar10'"):
        pool.finished(begun.configs()[0])  # the run by hand holds no hash of the weights
    with pytest.raises(InputError, match=r"takes cifar10 or cifar100, got 'runs/mine'"):
        asked("runs/mine").configs()
    with pytest.raises(InputError, match="train each run's teacher themselves"):
        table3(changes={"loss.teacher": "runs/mine"}).configs()
    with pytest.raises(InputError, match=r"stbp-tdbn.* cannot start: the weights of 'cifar10' do not fit .*rho"):
        check_before_training([asked("cifar10", ("stbp-tdbn",))], Pool(tmp_path / "empty"))


def test_the_factor_under_test_survives_every_scale():
    for scale in SCALES:
        asked = request("idea", scale)
        assert {asked.config(v, 0).model.v_th for v in asked.variants()} == {0.1}
        steps = {v.at["rival"]: asked.config(v, 0).model.num_steps for v in request("rivals", scale).variants()}
        assert (steps["s2nn"], steps["ltl"]) == (1, 8)


def test_a_method_with_options_has_its_methods_colour_and_a_line_of_its_own():
    for method in ("stbp-tdbn", "mpd-agl", "mpd-gain"):
        assert colour(f"{method}@kappa=2") == colour(method)
        assert style_of(f"{method}@kappa=2") == ":" != style_of(method)
    assert colour("lsg") != colour("stbp-tdbn@kappa=2")


@pytest.mark.parametrize(("old", "package"), [("reproduce", "experiments"), ("bench", "benchmarks")])
def test_the_package_has_a_command_and_the_old_one_names_it(old, package, tmp_path, capsys):
    assert main([old, "--list"]) == 2
    assert f"python -m {package}" in capsys.readouterr().err
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    listing = [sys.executable, "-m", package, "--list"]
    done = subprocess.run(listing, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert {"experiments": "table3", "benchmarks": "spikingjelly"}[package] in done.stdout
    mistake = [sys.executable, "-m", package, "nonsense"]
    assert subprocess.run(mistake, cwd=tmp_path, env=environment, capture_output=True).returncode == 2
