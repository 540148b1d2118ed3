"""The parts of benchmarks/events.py that decide what its figures mean: rates read from a run, rates imposed on a network."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.models import create_model

ROOT = Path(__file__).parents[2]


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load("bench_events", ROOT / "benchmarks" / "events.py")
made = load("report_runfolder", ROOT / "tests" / "report" / "runfolder.py")


def test_rates_are_the_means_of_the_last_epochs_snapshots(tmp_path):
    run = made.write(tmp_path / "run")
    bench.main(["rates", str(run), "--json", str(tmp_path / "rates.json")])
    found = json.loads((tmp_path / "rates.json").read_text())
    assert list(found["layers"]) == list(made.LAYERS)
    assert found["layers"]["conv3"]["rate_T"] == pytest.approx([0.12, 0.121, 0.122])
    assert found["layers"]["conv3"]["rate"] == pytest.approx(0.121)
    assert found["run"]["steps"] == [21, 26]
    silent = made.write(tmp_path / "silent", lines=made.events(monitored=False))
    with pytest.raises(InputError, match="not monitored"):
        bench.main(["rates", str(silent)])


def test_imposed_rates_are_those_asked_for():
    torch.manual_seed(0)
    net = create_model("cnn8", width=0.0625, image_size=16)
    wanted = {f"conv{i}": 0.05 * i for i in range(1, 8)}
    x = torch.randn(8, 3, 16, 16)
    bench.impose(net, x, wanted)
    seen = {}
    for name in wanted:
        net.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: float(o.mean())}))
    for mode in (True, False):  # batch statistics are those that evaluation uses
        with torch.no_grad():
            net.train(mode)(x)
        assert seen == pytest.approx(wanted, abs=0.01)


def test_docs_are_written_between_the_marks(tmp_path, monkeypatch):
    cell = {"channels": 128, "size": 32, "batch": 32, "rate": 0.14, "asked_rate": 0.14}
    cell |= {"speed_up": 3.25, "speed_up_alone": 3.0, "speed_up_weight_gradient": 5.0}
    facts = {"setting": {"threads": 1, "simd": "avx2", "rounds": 7}, "hardware": {"cpu": "a processor"}}
    facts |= {"versions": {"torch": "2.10"}, "code": {"commit": "0123456789ab", "changed": False}}
    page = tmp_path / "events.md"
    page.write_text("before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n")
    monkeypatch.setattr(bench, "DOC", page)
    (tmp_path / "table.json").write_text(json.dumps({**facts, "cells": [cell]}))
    bench.main(["docs", "--table", str(tmp_path / "table.json")])
    text = page.read_text()
    assert text.startswith("before\n<!-- table: begin -->\na processor, 1 threads, avx2")
    assert "| 128, 32x32, 32 | 3.25x |" in text
    assert "old" not in text
    assert text.endswith("<!-- table: end -->\nafter\n")
    assert (tmp_path / "events-speedup.svg").read_bytes().startswith(b"<?xml")
