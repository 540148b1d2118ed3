"""The pages under docs that tools make from records: what was asked, what came, what is missing."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.workload import Workload

from benchmarks import active, active_network, compare
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock
from mpd_agl.train import build
from mpd_agl.train.losses import cross_entropy
from mpd_agl.train.resolve import nest, resolve
from tests.benchmarks.test_bench import record as comparison
from tools import (
    active_page,
    evidence_glance,
    evidence_page,
    evidence_rates,
    evidence_summary,
    gain_parts,
    gamma_moves,
    gradient_sizes,
    kept_runs,
    performance_page,
    rivals_page,
    time_to_accuracy,
)

MARKS = "".join(f"<!-- {n}: begin -->\nold\n<!-- {n}: end -->\nafter\n" for n in ("table", "network"))


def test_the_page_says_what_was_asked_what_came_and_what_is_missing(tmp_path):
    narrow = comparison()
    narrow["setting"] |= {"width_mult": 0.125, "batch": 100, "image_size": 0}
    narrow["contenders"]["convs"] = narrow["contenders"]["native"]
    narrow["ratios"]["of"]["convs"] = {"time": 0.8, "range": [0.75, 0.85], "peak_memory": 0.9}
    narrow["ratios_auto"] = {
        "base": "native+auto",
        "of": {"ann": {"time": 1.25, "range": [1.0, 1.6], "peak_memory": 2.0}},
    }
    (tmp_path / "train-narrow.json").write_text(json.dumps(narrow))
    (tmp_path / "train-full.json").write_text(json.dumps(narrow))  # of another setting than its name says
    performance_page.main(["--records", str(tmp_path), "-o", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    rows = page.splitlines()
    assert (
        "| train-narrow | ANN, batch T*N | at most 0.7x its time | 0.44x (0.40 to 0.50) "
        "| **0.80x (0.62 to 1.00)** | 0.36x |" in rows
    )
    assert (
        "| train-narrow | its convolutions | at most 1.25x its time | 1.25x (1.18 to 1.33) | not measured |  |" in rows
    )
    assert "| train-narrow | SpikingJelly | at least 2.5x faster | not measured | not measured |  |" in rows
    # train-full.json holds another setting than its name says; train-vggsnn.json is not there
    assert "| train-full | SpikingJelly | at least 1.18x faster | not measured | not measured |  |" in rows
    assert "| train-vggsnn | SpikingJelly | at least 2.2x faster | not measured | not measured |  |" in rows
    assert "a fixed loop between rounds took at most 1.10 times its best" in " ".join(page.split())
    assert max(map(len, rows)) <= 120
    assert (tmp_path / "train-narrow.svg").is_file()


def test_a_page_without_records_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="tools/measure_performance.sh"):
        performance_page.main(["--records", str(tmp_path), "-o", str(tmp_path / "page.md")])
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
    performance_page.main(["--records", str(tmp_path), "-o", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert "| int8 | 98.00 % | 0.10000 | 1000 |" in page
    assert "| 0.8 | 98.20 % | 1.057 | 0.500 |" in page
    assert "| train-narrow | snnTorch | at least 3x faster | not measured | not measured |  |" in page


def active_record(**parts):
    facts = {"setting": {"threads": 1, "simd": "avx2", "rounds": 7, "quick": False}, "hardware": {"cpu": "a processor"}}
    facts |= {"versions": {"torch": "2.10"}, "code": {"commit": "0123456789ab", "changed": False}}
    return {"what": active.WHAT, "rates": None, "load_before": 0.25, **facts, **parts}


def test_docs_are_written_between_the_marks(tmp_path):
    cell = {"channels": 128, "size": 32, "batch": 32, "rate": 0.14, "asked_rate": 0.14}
    cell |= {"speed_up": 3.25, "speed_up_alone": None, "speed_up_weight_gradient": 5.0}
    page, source = tmp_path / "active.md", tmp_path / "table.json"
    page.write_text("before\n" + MARKS)
    source.write_text(json.dumps(active_record(table={"cells": [cell]})))
    active_page.main([str(source), "-o", str(page)])
    text = page.read_text()
    head = (
        "a processor, 1 threads, avx2, torch 2.10, 7 rounds, load 0.2 before, commit 012345678. [Record](table.json)."
    )
    assert text.startswith(f"before\n<!-- table: begin -->\n{head}\n")
    assert "| 128, 32x32, 32 | 3.25x |" in text
    assert "| 128, 32x32, 32 | differs |" in text
    assert text.count("old") == 1  # the network's part is not in this record
    assert (tmp_path / "active-speedup.svg").read_bytes().startswith(b"<?xml")


def test_another_simd_level_has_marks_and_a_plot_of_its_own(tmp_path):
    cell = {"channels": 128, "size": 32, "batch": 32, "rate": 0.14, "asked_rate": 0.14}
    cell |= {"speed_up": 2.5, "speed_up_alone": 2.75, "speed_up_weight_gradient": 3.0}
    page, source = tmp_path / "active.md", tmp_path / "table.json"
    page.write_text(MARKS + "<!-- table-avx512: begin -->\nolder\n<!-- table-avx512: end -->\n")
    record = active_record(table={"cells": [cell]})
    source.write_text(json.dumps(record | {"setting": record["setting"] | {"simd": "avx512"}}))
    active_page.main([str(source), "-o", str(page)])
    text = page.read_text()
    assert text.startswith(MARKS)
    assert "older" not in text
    assert "| 128, 32x32, 32 | 2.75x |" in text.partition("<!-- table-avx512: begin -->")[2]
    assert [p.name for p in tmp_path.glob("*.svg")] == ["active-speedup-avx512.svg"]


def test_a_contender_that_differs_has_no_ratio_in_text_and_page(tmp_path):
    times = {"auto": 100.0, "dense": 150.0, "SpikingJelly": 222.0}
    agreed = {"agrees": True, "how": "", "differ": 0.0, "worst": 0.0}
    part = {
        "setting": Workload(width_mult=1.0, batch=16).to_dict(),
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
    source, page = tmp_path / "record.json", tmp_path / "active.md"
    source.write_text(json.dumps(active_record(training=part)))
    page.write_text(MARKS)
    active_page.main([str(source), "-o", str(page)])
    assert "| dense | 150.0 | 1.50 | 1.00 to 2.00 |\n| SpikingJelly | 222.0 | outputs differ | |" in page.read_text()
    text = active_network.text(part)
    assert "2.22" not in text
    assert "SpikingJelly: no ratio, its outputs are not ours (stem differs)" in text


def test_a_page_of_another_kind_stays_as_it_is(tmp_path):
    source, page = tmp_path / "record.json", tmp_path / "page.md"
    page.write_text("no marks here\n")
    source.write_text("{}")
    with pytest.raises(SystemExit, match="is no record of mpd-agl bench active"):
        active_page.main([str(source), "-o", str(page)])
    source.write_text(json.dumps(active_record(training={})))
    with pytest.raises(SystemExit, match=r"are not what was written \('setting' is missing\)"):
        active_page.main([str(source), "-o", str(page)])
    assert page.read_text() == "no marks here\n"
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["page.md", "record.json"]


def test_the_rows_of_table_1_that_were_trained_here_are_shown():
    head = ["data", "method", "source", "network", "T", "accuracy, last epoch", "best on test", "MPD-AGL minus this"]
    rows = [
        ["CIFAR-10", "TAB", "here", "ResNet-19", "2", "30.00", "31.00", "", ""],
        ["CIFAR-10", "TAB", "quoted", "ResNet-19", "2", "", "", "", "94.73"],
    ]
    cell = {"hardware": {"cpu": "a processor", "threads": 1}, "code": {"commit": "0123456789"}}
    notes = ["The paper: no", "Data: cifar10: 10,000 training and 2,000 test samples."]
    made = rivals_page.table1_table(
        {"table": {"head": [*head, "paper"], "rows": rows}, "cells": [cell], "notes": notes}
    )
    assert made[-1] == "| TAB | ResNet-19 | 2 | 30.00 | 31.00 |"
    assert len(made) == 6
    assert made[0].startswith("Data: cifar10: 10,000 training and 2,000 test samples. a processor, 1 thread")


def test_the_rivals_page_has_a_table_per_record_and_keeps_the_others(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {n}: begin -->\nold\n<!-- {n}: end -->\n" for n in ("demo", "cost", "lines")))
    ran = {"cpu": "a CPU", "threads": 2}
    head = ["rival", "slot", "seeds", "accuracy, last epoch", "best on test", "minus MPD-AGL", "within 1.5 points"]
    demo = {
        "table": {"head": head, "rows": [["TAB", "norm", "3", "97.00 ± 0.10", "97.20", "-0.40 [-1.0, +0.2]", "yes"]]},
        "hardware": [ran],
        "code": [{"commit": "0123456789abc"}],
        "notes": ["Not complete: 1 of 4 runs are not there yet.", "other"],
        "sentence": "1 of 1 rivals end within 1.5 points.",
    }
    (tmp_path / "rivals.json").write_text(json.dumps(demo))
    ask = ["--records", str(tmp_path), "-o", str(page)]
    assert rivals_page.main(ask) == 0
    text = page.read_text()
    assert "| TAB | norm | 3 | 97.00 ± 0.10 | 97.20 | -0.40 [-1.0, +0.2] | yes |" in text
    assert "Not complete: 1 of 4" in text
    assert "commits 012345678." in text
    assert "<!-- cost: begin -->\nold\n" in text
    counts = [int(line.split("|")[2]) for line in text.partition("| rival | lines |")[2].splitlines()[2:-1]]
    assert counts[-1] <= 120  # issue 17: what a rival may cost on average
    assert counts[-1] == round(sum(counts[:-1]) / len(rivals_page.RIVALS))
    row = {"num_steps": 2, "time": 1.5, "range": [1.4, 1.6], "peak_memory": 0.9, "ms_per_image": 2.0}
    cost = {
        "setting": Workload().to_dict(),
        "hardware": ran,
        "versions": {"torch": "2.0"},
        "rounds": 5,
        "slowdown": [1.0, 1.1],
        "rows": {"norm=tab": row},
        "left_out": {"asgl": "why"},
    }
    (tmp_path / "methods.json").write_text(json.dumps(cost))
    assert rivals_page.main(ask) == 0
    assert "| `norm=tab` | 2 | 1.50 (1.40 to 1.60) | 0.90 | 2.00 |" in page.read_text()
    (tmp_path / "methods.json").write_text("{}")
    assert rivals_page.main(ask) == 2
    assert "'setting' is missing" in capsys.readouterr().err


def test_the_evidence_page_holds_a_records_table_command_and_commit(tmp_path):
    record = {
        "study": "depth",
        "sentence": "Ahead at 24 layers: ours, 83.0 %.",
        "notes": ["3 seeds."],
        "table": {"head": ["method", "24 layers"], "rows": [["ours", "83.00 +- 1.00"], ["fixed", ""]]},
        "command": "mpd-agl reproduce depth --only " + " ".join(f"depth={k}" for k in range(20)),
        "code": [{"commit": "0123456789abcdef"}],
        "hardware": [{"cpu": "A processor", "simd": "avx2"}, {"cpu": "A processor", "simd": None}],
        "cells": [],
    }
    (tmp_path / "depth.json").write_text(json.dumps(record))
    (tmp_path / "other.json").write_text(json.dumps(record))  # no marks: stays out
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- depth: begin -->\nold\n<!-- depth: end -->\nafter\n")
    assert evidence_page.write(tmp_path, page) == ["depth"]
    rows = page.read_text().splitlines()
    assert "| method | 24 layers |" in rows
    assert "|---|---:|" in rows
    assert "| ours | 83.00 +- 1.00 |" in rows
    assert "3 seeds. Commit 012345678; A processor; A processor with AVX2. [Record](depth.json)." in rows
    first = rows.index("```bash")
    assert rows[first + 1].endswith(" \\")
    assert not rows[first + 2].endswith("\\")
    assert "old" not in rows
    assert max(map(len, rows)) <= 120


def test_a_stress_test_shows_the_accuracies_of_each_place():
    head = ["factor", "value", "data", "method", "accuracy, last epoch", "best on test"]
    rows = [
        ["rate", "0.2", "digits", "MPD-AGL", "90.00 ± 1.00", "91.00"],
        ["rate", "0.2", "digits", "LSG", "80.00 ± 1.00", "91.00"],
        ["rate", "0.4", "digits", "LSG", "70.00 ± 1.00", "91.00"],
    ]
    record = {"study": "stress", "details": {"head": head, "rows": rows}}
    assert evidence_page.accuracies(record)[2:-1] == [
        "| factor | value | data | MPD-AGL | LSG |",
        "|---|---|---|---:|---:|",
        "| rate | 0.2 | digits | 90.00 ± 1.00 | 80.00 ± 1.00 |",
        "| rate | 0.4 | digits |  | 70.00 ± 1.00 |",
    ]
    assert evidence_page.accuracies(record | {"study": "depth"}) == []


def test_a_glance_counts_a_place_once_and_by_its_interval(tmp_path, capsys):
    head = [
        "factor",
        "value",
        "data",
        "method",
        "accuracy, last epoch",
        "minus MPD-AGL",
        "mpd-gain (ours) minus this",
    ]

    def record(factor, values):
        rows, cells = [], []
        for value, run, ours, paper in values:
            rows.append([factor, value, "digits", "mpd-gain (ours)", "90.00", "", ""])
            rows.append([factor, value, "digits", "MPD-AGL", "89.00", "", ours])
            rows.append([factor, value, "digits", "trainable decay", "89.00", "+7.00 [+6.00, +8.00]", ""])
            rows.append([factor, value, "digits", "STBP-tdBN", "89.00", paper, ""])
            at = {"factor": factor, "value": value, "data": "digits"}
            cells.append({"method": "mpd-gain", "at": at, "runs": {"0": run, "1": f"{run} too"}})
            cells.append({"method": "mpd-agl", "at": at, "runs": {"0": f"other {run}"}})
        return json.dumps({"study": "stress", "changes": {}, "details": {"head": head, "rows": rows}, "cells": cells})

    large = ("large", "-2.00 [-3.00, -1.00]", "+0.10 [-1.00, +1.20]")
    usual = ("usual", "+1.00 [+0.50, +1.50]", "+1.00 [+0.50, +1.60]")
    (tmp_path / "stress.json").write_text(
        record("threshold", [("0.1", "low", "+9.00 [-1.00, +19.00]", ""), ("0.5", *usual)])
    )
    (tmp_path / "stress-more.json").write_text(record("batch", [("25", *usual), ("50", *usual), ("400", *large)]))
    page = tmp_path / "page.md"
    page.write_text("<!-- glance: begin -->\n<!-- glance: end -->\n")
    ask = ["--records", str(tmp_path), "--out", str(tmp_path), "--page", str(page)]
    assert evidence_glance.main(ask) == 0
    made = json.loads((tmp_path / "glance.json").read_text())
    assert made["counts"]["ours minus MPD-AGL"] == {"ahead": 1, "undecided": 1, "behind": 1}
    assert made["counts"]["MPD-AGL minus a width of 1"] == {"ahead": 0, "undecided": 1, "behind": 1}
    assert [p["name"] for p in made["places"]] == [
        "CNN-8, digits, threshold v_th = 0.1",
        "CNN-8, digits, threshold v_th = 0.5",
        "CNN-8, digits, batch size = 400",
    ]
    assert made["places"][2]["gaps"]["ours minus MPD-AGL"] == [-2.0, -3.0, -1.0]
    assert made["places"][1]["gaps"]["MPD-AGL minus a width of 1"] == [-1.0, -1.6, -0.5]
    assert "ours minus MPD-AGL, ahead at 1 of 3 places, behind at 1" in " ".join(page.read_text().split())
    assert (tmp_path / "glance.png").stat().st_size > 1000
    for file in tmp_path.glob("stress*.json"):
        file.unlink()
    assert evidence_glance.main(ask) == 2
    assert "no record in" in capsys.readouterr().err


def test_a_glance_tells_where_the_tuned_width_is_one():
    def place(fixed, tuned):
        gaps = {"ours minus a width of 1": fixed, "ours minus the tuned width": tuned}
        return evidence_glance.Place("somewhere", {name: (gap, gap - 1, gap + 1) for name, gap in gaps.items() if gap})

    places = [place(5.0, 5.0), place(5.0, 2.0), place(5.0, None)]
    assert "At 1 places the tuned width is 1" in " ".join(evidence_glance.lines(places, "a.png", "a.json"))


def test_how_far_gamma_moves_is_of_the_runs_that_are_kept(tmp_path, capsys):
    root = Path(__file__).parents[2]
    table = json.loads((root / gamma_moves.RECORDS / "table3.json").read_text())
    made = gamma_moves.record_of(table, kept_runs.read_kept(root / kept_runs.FILE))
    assert json.loads((root / gamma_moves.OUT / "gamma-moves.json").read_text()) == json.loads(json.dumps(made))
    page = (root / gamma_moves.PAGE).read_text(encoding="utf-8")
    assert "\n".join(gamma_moves.lines(made, "results/gamma-moves.png", "results/gamma-moves.json")) in page
    (tmp_path / "table3.json").write_text(json.dumps(table))
    assert gamma_moves.main(["--records", str(tmp_path / "table3.json"), "--kept", str(tmp_path / "none")]) == 2
    assert "does not hold the run cifar10-resnet19-t2-mpd-agl-s0" in capsys.readouterr().err


def test_the_first_gradients_on_the_page_are_the_records(tmp_path, capsys):
    root = Path(__file__).parents[2]
    record = json.loads((root / gradient_sizes.OUT / "gradient-sizes.json").read_text())
    made = gradient_sizes.lines(record, "results/gradient-sizes.png", "results/gradient-sizes.json")
    assert "\n".join(made) in (root / gradient_sizes.PAGE).read_text(encoding="utf-8")
    for sizes in record["relative"].values():
        assert set(sizes["mpd-agl"]) == {1.0}
    (tmp_path / "page.md").write_text("no marks")
    assert gradient_sizes.main(["--page", str(tmp_path / "page.md")]) == 2  # before anything is measured
    assert "has no marks '<!-- gradient-sizes: begin -->'" in capsys.readouterr().err


def test_the_parts_of_the_rule_on_the_page_are_the_records():
    root = Path(__file__).parents[2]
    record = json.loads((root / gain_parts.OUT).read_text())
    assert "\n".join(gain_parts.lines(record)) in (root / gain_parts.PAGE).read_text(encoding="utf-8")
    assert len(record["trials"]) == len(gain_parts.TRIALS) == 48


def test_the_first_gradients_are_root_mean_squares_over_batches():
    small = {"model.name": "cnn8", "model.width_mult": 0.0625, "data.name": "mnist5k"}
    config = resolve(nest(small))
    torch.manual_seed(0)
    net = build.build_network(config, in_channels=1, image_size=28, num_classes=10)
    batches = [(torch.rand(2, 5, 1, 28, 28), torch.randint(10, (5,))) for _ in range(2)]
    made = gradient_sizes.sizes(net, config, batches)
    blocks = {n: m for n, m in net.train().named_modules() if isinstance(m, SpikingBlock)}
    assert list(made["mpd-agl"]) == list(blocks)
    squares = []
    for x, y in batches:
        net.zero_grad()
        cross_entropy(net(x), y).backward()
        squares.append([float(block.synapse.weight.grad.square().sum()) for block in blocks.values()])
    by_hand = [((a + b) / 2) ** 0.5 for a, b in zip(*squares, strict=True)]
    assert [*made["mpd-agl"].values()] == pytest.approx(by_hand, rel=1e-4)
    assert [*made["lsg"].values()] != pytest.approx(by_hand, rel=1e-2)  # another rule, other gradients


def of_rate(lr, scores):
    cells = [
        {"method": m, "at": {}, "seed": s, "final": {"test_accuracy": v}, "config": {"optim": {"lr": lr}}}
        for m, values in scores.items()
        for s, v in enumerate(values)
    ]
    return {"cells": cells, "ended_in_nan": []}


def test_rates_are_compared_at_equal_ones_and_each_method_at_its_best(tmp_path, capsys):
    usual = of_rate(0.1, {"mpd-gain": [0.5, 0.6, 0.9], "mpd-agl": [0.4, 0.4, 0.1], "lsg": [0.3]})
    other = of_rate(0.2, {"mpd-gain": [0.5, 0.7], "mpd-agl": [0.45, 0.55]})
    made = evidence_rates.lines([usual, other])
    assert made[0] == "| accuracy, 2 seeds | rate 0.1 (usual) | rate 0.2 |"
    assert made[2:4] == [
        "| mpd-gain (ours) | 55.00 ± 7.07 | 60.00 ± 14.14 |",
        "| MPD-AGL | 40.00 ± 0.00 | 50.00 ± 7.07 |",
    ]
    assert "LSG" not in "".join(made)
    assert made[5] == "| difference | rate 0.1 (usual) | rate 0.2 | each at its best rate |"
    cells = made[7].strip("| ").split(" | ")
    assert [c.split(" [")[0] for c in cells] == ["ours minus MPD-AGL", "+15.00", "+10.00", "+10.00"]
    assert made[8].startswith("| ours at 0.1 minus MPD-AGL at this rate | +15.00 [")
    by_place = {"method": "mpd-gain", "at": {}, "accuracy": {"0": 0.5, "1": 0.7}}  # as `depth` has them
    other_form = {"cells": [by_place, *other["cells"][2:]]}
    assert evidence_rates.scores(other_form) == evidence_rates.scores(other)
    assert evidence_rates.lines([other, usual])[0] == "| accuracy, 2 seeds | rate 0.1 | rate 0.2 (usual) |"
    third = of_rate(0.4, {"mpd-gain": [0.2, 0.2], "mpd-agl": [0.3, 0.2]})  # best at 0.2 and 0.2 as before
    cells = evidence_rates.lines([usual, other, third])[7].strip("| ").split(" | ")
    assert [c.split(" [")[0] for c in cells][1:] == ["+15.00", "+10.00", "-5.00", "+10.00"]
    third = of_rate(0.4, {"mpd-gain": [0.2, 0.2], "mpd-agl": [0.7, 0.6]})  # MPD-AGL's best is another than ours
    cells = evidence_rates.lines([usual, other, third])[7].strip("| ").split(" | ")
    assert [c.split(" [")[0] for c in cells][1:] == ["+15.00", "+10.00", "-45.00", "-5.00"]
    lost = other | {"ended_in_nan": [{"method": "mpd-agl", "at": {}, "seeds": [2], "accuracy": {"2": 0.1}}]}
    lost["cells"] = [*other["cells"], *of_rate(0.2, {"mpd-gain": [0.5, 0.7, 0.6]})["cells"][2:]]
    made = evidence_rates.lines([usual, lost])
    assert made[0].startswith("| accuracy, 3 seeds |")
    assert made[3] == "| MPD-AGL | 30.00 ± 17.32 | 36.67 ± 23.63 |"  # 45, 55 and a guess
    with pytest.raises(InputError, match="mpd-agl has no runs at each of the rates 0.1, 0.2"):
        evidence_rates.lines([usual, of_rate(0.2, {"mpd-gain": [0.5]})])
    with pytest.raises(InputError, match="of 2 places"):
        evidence_rates.scores({"cells": [*usual["cells"], {"at": {"data": "x"}}], "ended_in_nan": []})
    with pytest.raises(InputError, match="2 records are of 1 rates"):
        evidence_rates.lines([usual, usual])
    with pytest.raises(InputError, match="mpd-gain, mpd-agl share no seed at all rates"):
        evidence_rates.lines([usual, of_rate(0.2, {"mpd-gain": [0.5], "mpd-agl": []}) | {"ended_in_nan": [
            {"method": "mpd-agl", "at": {}, "seeds": [2], "accuracy": {"2": 0.1}}]}])  # fmt: skip
    with pytest.raises(InputError, match=r"have the rates \[0.1, 0.2\]"):
        evidence_rates.rate_of({"cells": usual["cells"] + other["cells"]})
    assert evidence_rates.main(["--records", str(tmp_path)]) == 2
    (tmp_path / "page.md").write_text("<!-- rates: begin -->\n<!-- rates: end -->\n")
    given = ["--records", str(tmp_path), "-o", str(tmp_path / "page.md")]
    (tmp_path / "table3-rate.json").write_text(json.dumps(other))
    assert evidence_rates.main(given) == 2
    assert "no records of two rates" in capsys.readouterr().err
    (tmp_path / "table3.json").write_text('{"cells": [')
    assert evidence_rates.main(given) == 2
    assert "table3.json are not what was written" in capsys.readouterr().err


def test_the_rates_on_the_page_are_the_records():
    root = Path(__file__).parents[2]
    page = (root / evidence_rates.PAGE).read_text(encoding="utf-8")
    for place in evidence_rates.PLACES:
        assert "\n".join(evidence_rates.lines(evidence_rates.read(root / evidence_rates.RECORDS, place))) in page


def test_the_glance_is_of_the_records_that_are_kept():
    root = Path(__file__).parents[2]
    places = evidence_glance.read(root / evidence_glance.RECORDS)
    made = evidence_glance.record_of(places)
    assert json.loads((root / evidence_glance.OUT / "glance.json").read_text()) == json.loads(json.dumps(made))
    page = (root / evidence_glance.PAGE).read_text(encoding="utf-8")
    assert "\n".join(evidence_glance.lines(places, "results/glance.png", "results/glance.json")) in page


def test_the_short_table_is_of_the_records_that_are_kept():
    root = Path(__file__).parents[2]
    for name, readme in (("README.md", True), ("docs/evidence.md", False)):
        made = evidence_summary.lines(root / evidence_summary.RECORDS, readme=readme)
        assert "\n".join(made) in (root / name).read_text(encoding="utf-8")


def test_a_row_of_the_short_table_is_one_place_or_the_worst_of_all(tmp_path, monkeypatch, capsys):
    head = ["value", "method", "accuracy, last epoch", "minus STBP-tdBN", "mpd-gain (ours) minus this"]
    rows = [
        ["0.1", "mpd-gain (ours)", "96.10 ± 0.40", "", ""],
        ["0.1", "MPD-AGL", "95.00 ± 0.10", "+9.00 [+8.00, +10.00]", "+1.10 [+0.10, +2.10]"],
        ["4", "mpd-gain (ours)", "9.50 ± 0.40", "", ""],
        ["4", "MPD-AGL", "10.00 ± 0.10", "", "-0.50 [-1.10, +0.10]"],
    ]
    both, row, record = ("mpd-gain", "mpd-agl"), evidence_summary.Row, tmp_path / "stress.json"
    cells = [{"method": m, "at": {"value": v}, "accuracy": {"0": 0.9, "1": 0.9}} for m in both for v in ("0.1", "4")]

    def told(*found, details=rows, runs=cells, lost=()):
        made = {"details": {"head": head, "rows": details}, "cells": runs, "ended_in_nan": list(lost)}
        record.write_text(json.dumps(made))
        monkeypatch.setattr(evidence_summary, "ROWS", found)
        pages = ["--page", str(tmp_path / "page.md"), "--readme", str(tmp_path / "readme.md")]
        return evidence_summary.main(["--records", str(tmp_path), *pages]), capsys.readouterr().err

    low, worst = row("low", "stress", {"value": "0.1"}, take="ours"), row("worst", "stress", worst=True)
    for page in ("page.md", "readme.md"):
        (tmp_path / page).write_text("<!-- summary: begin -->\n<!-- summary: end -->\n")
    assert told(low, row("high", "stress", {"value": "4"}), worst, row("none", "absent")) == (0, "")
    made = (tmp_path / "page.md").read_text()
    assert made.splitlines()[3:-1] == [
        "| low | 2 |  |  | 95.00 ± 0.10 | 96.10 ± 0.40 | **+1.10 [+0.10, +2.10]** |",
        "| high | 2 |  |  | 10.00 ± 0.10 | 9.50 ± 0.40 | -0.50 [-1.10, +0.10] |",
        "| worst | 2 |  |  | 10.00 | 9.50 |  |",
    ]
    assert (tmp_path / "readme.md").read_text().splitlines()[1:-1] == [
        "| test accuracy, % | width 1 | tuned width | MPD-AGL | ours | take |",
        "|---|---:|---:|---:|---:|---|",
        "| low |  |  | 95.00 ± 0.10 | 96.10 ± 0.40 | ours |",
    ]
    runs = [{"method": m, "at": {"value": "0.1"}, "seed": s} for m in both for s in (0, 1)]  # as Table 3 has them
    guessed = {"method": "mpd-agl", "at": {"value": "0.1"}, "seeds": [1], "accuracy": {"1": 0.1}}  # ended in NaN
    assert told(low, runs=runs[:-1], lost=[guessed]) == (0, "")
    made = (tmp_path / "page.md").read_text()
    one_run = [{"method": "mpd-gain", "at": {}, "seed": 0}]
    for code, error in (
        told(row("two", "stress")),
        told(row("nowhere", "stress", {"value": "7"})),
        told(worst, details=rows[:3]),
        told(low, runs=cells + one_run),
        told(low, runs=runs[:-1]),
    ):
        assert code == 2
        assert "one place for each method" in error or "[1, 2] seeds" in error
    assert (tmp_path / "page.md").read_text() == made


def test_the_evidence_page_quotes_the_paper_only_beside_runs_of_the_same_data():
    head = ["method", "CIFAR-10", "paper, CIFAR-10 (quoted)", "CIFAR-100", "paper, CIFAR-100 (quoted)"]
    record = {
        "study": "table3",
        "sentence": "",
        "notes": [],
        "command": "mpd-agl reproduce table3",
        "code": [],
        "hardware": [],
        "cells": [],
        "table": {"head": head, "rows": [["MPD-AGL", "", "96.18", "8.23", "78.84"]]},
    }
    lines = evidence_page.lines_of(record, "table3.json", None)
    assert "| method | CIFAR-100 | paper, CIFAR-100 (quoted) |" in lines
    assert "| MPD-AGL | 8.23 | 78.84 |" in lines


def test_a_first_step_within_two_seconds_of_dense_reaches_its_goal():
    for ours, shown in ((3.5, "3.50 s, dense 1.60 s"), (3.7, "**3.70 s, dense 1.60 s**")):
        lines = performance_page.goal_table({"a": {"first-step": {"median": {"auto": ours, "dense": 1.6}}}})
        assert lines[-1].endswith(f"| dense | at most 2 s more | {shown} |")


def test_the_growth_of_the_peak_is_told_where_it_was_measured():
    def point(T, ms, step, peak):
        ours = {"ms_per_image": ms, "step_bytes": step, "peak_bytes": peak}
        return {"axis": "num_steps", "value": T, "contenders": {"ours": ours}}

    record = {"points": [point(2, 1.0, 10, 100), point(16, 6.5, 80, 290)]}
    assert "the process's peak grows by 2.9x from T=2 to T=16." in " ".join(performance_page.growth_lines(record))
    assert performance_page.growth_lines({"points": []}) == []
    grown = "| itself | at most 7x of both | 6.50x time, **8.00x memory of the step** |"
    assert performance_page.goal_table({"a": {"growth-train": record}})[-2].endswith(grown)


def test_time_to_accuracy_counts_images_by_the_measured_step_of_their_T():
    parts = [
        {"num_steps": 1, "epochs": 2, "images": 1_800_000, "accuracy": 0.8, "by_epoch": None},
        {"num_steps": 2, "epochs": 2, "images": 3_600_000, "accuracy": 0.86, "by_epoch": [0.75, 0.86]},
    ]
    steps = {1: {"ours": 1.0, "spikingjelly": 3.0}, 2: {"ours": 2.0, "spikingjelly": 4.0}}
    assert time_to_accuracy.curves(parts, steps, "ours") == [(0.5, 0.8), (1.5, 0.75), (2.5, 0.86)]
    assert time_to_accuracy.ends(parts, steps, "spikingjelly") == [1.5, 5.5]
    rows = {row[0]: row[1:] for row in time_to_accuracy.table(parts, steps)}
    assert rows["80 %"] == ["0.50 h", "1.50 h"]
    assert rows["85 %"] == ["2.50 h", "5.50 h"]
    assert rows["90 %"] == ["not reached", "not reached"]
    assert time_to_accuracy.picture(parts, {T: {**s, "threads": 2} for T, s in steps.items()})[1:4] == b"PNG"
    with pytest.raises(InputError, match="no step at T = 2 was measured"):
        time_to_accuracy.curves(parts, {1: steps[1]}, "ours")


def test_time_to_accuracy_answers_bad_input_with_a_sentence_and_writes_nothing(tmp_path, capsys):
    page, steps = tmp_path / "page.md", [str(tmp_path / f"step-t{T}.json") for T in (1, 2)]
    page.write_text("<!-- time: begin -->\nold\n<!-- time: end -->\n")
    ask = ["--out", str(tmp_path), "--page", str(page), "--steps"]

    def answer(*words):
        assert time_to_accuracy.main([*ask, *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "step-t1.json: No such file or directory. Name another file." in answer(*steps)
    for path, T in zip(steps, (1, 2), strict=True):
        setting = {"work": "train", "width_mult": 0.125, "model": "resnet19", "method": "mpd-gain", "batch": 100}
        took = {"ours": {"ms_per_image": 1.0 * T}, "spikingjelly": {"ms_per_image": 2.0 * T}}
        told = {"setting": {**setting, "num_steps": T, "threads": 2}, "contenders": took}
        Path(path).write_text(json.dumps({**told, "hardware": {"cpu": "A processor"}, "code": {}}))
    assert "no step at T = 2 was measured" in answer(steps[0])
    assert "began with another card's weights" in answer(*steps, "--card", "cifar100")
    assert "no run at" in answer(*steps, "--runs", str(tmp_path / "none"))
    assert page.read_text() == "<!-- time: begin -->\nold\n<!-- time: end -->\n"
    assert not (tmp_path / "time.json").exists()
    assert time_to_accuracy.main([*ask, *steps]) == 0
    assert "| 80 % | " in page.read_text()
    made = json.loads((tmp_path / "time.json").read_text())
    assert len(made["parts"]) == 4
    made["parts"][3]["by_epoch"] = [0.5, 0.6]
    made["parts"][2] |= {"by_epoch": [0.5], "accuracy": 0.1}  # of another run
    (tmp_path / "time.json").write_text(json.dumps(made))
    assert time_to_accuracy.main([*ask, *steps]) == 0
    whole = (tmp_path / "time.json").read_text()
    (tmp_path / "time.json").write_text('{"parts": 3}')
    assert "time.json are not what was written" in answer(*steps)
    (tmp_path / "time.json").write_text(whole)
    again = json.loads((tmp_path / "time.json").read_text())["parts"]
    assert [part["by_epoch"] for part in again] == [None, None, None, [0.5, 0.6]]
