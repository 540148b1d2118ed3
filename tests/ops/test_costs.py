"""The machine's table of costs: what it predicts, and that it is measured once."""

import json
import logging

import pytest
import torch

from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import costs
from mpd_agl.ops.conv.costs import Costs, Layer

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


def table(dense=4.0, event=(1.0, 10.0)):
    """Dense costs 4 ns times the width's place (1, 2, 3), event 1 + 10 rate, of each multiply-add."""
    passes = {
        "forward": {"dense": [dense, 0.0], "event": list(event)},
        "weight_grad": {"dense": [dense, 0.0], "event": list(event)},
        "input_grad": {"dense": [dense, 0.0]},
    }
    cells = {
        kind: {
            str(width): {n: {w: [place * v for v in ab] for w, ab in ways.items()} for n, ways in passes.items()}
            for place, width in enumerate(costs.WIDTHS, 1)
        }
        for kind in costs.KINDS
    }
    calls = {"dense": 100.0, "event": 200.0, "winograd": 1.0}
    scans = {"scan": [50.0, 0.5], "bits": [20.0, 0.25]}
    return Costs({"cells": cells, "call": calls, "pack": {"event": 3.0}, "weight": {}, **scans})


def test_a_prediction_by_hand():
    made, layer = table(), Layer("3x3", 64.0, macs=1000, weights=10, inputs=400)
    assert made.ms(layer, "forward", "dense", 0.3, packs=True) == pytest.approx(1e-6 * (100 + 1000 * 2 * 4))
    event = made.ms(layer, "forward", "event", 0.3, packs=True)
    assert event == pytest.approx(1e-6 * (200 + 3 * 10 + 1000 * 2 * (1 + 10 * 0.3)))
    assert made.ms(layer, "weight_grad", "event", 0.3, packs=True) == pytest.approx(event - 1e-6 * 30)
    assert made.ms(layer, "forward", "event", 0.3, packs=False) == pytest.approx(event - 1e-6 * 30)
    assert made.lists_ms(layer) == pytest.approx(1e-6 * (50 + 200))
    assert made.bits_ms(layer) == pytest.approx(1e-6 * (20 + 100))
    # half way from 16 to 64, on a logarithmic scale
    between = Layer("3x3", 32.0, macs=1000, weights=10, inputs=400)
    assert made.ms(between, "forward", "dense", 0.3, packs=False) == pytest.approx(1e-6 * (100 + 1000 * 1.5 * 4))
    for width, place in ((2.0, 1), (4000.0, 3)):
        outside = Layer("linear", width, macs=1000, weights=10, inputs=400)
        assert made.ms(outside, "forward", "dense", 0.3, packs=False) == pytest.approx(1e-6 * (100 + 1000 * place * 4))
    with costs.using(made):
        found = costs.predict(layer, 0.3, {"forward": ("dense", "event", "winograd")}, packs=False)
    assert set(found["forward"]) == {"dense", "event"}  # nothing is known of Winograd's form here


def test_winograds_form_counts_whole_tiles_and_every_gradient_its_weights():
    passes = {"forward": 1, "weight_grad": 2, "input_grad": 3}
    cells = {str(width): {name: {"winograd": [5.0, 0.0]} for name in passes} for width in costs.WIDTHS}
    base = table().table
    weight = {"3x3": {name: {"winograd": float(each)} for name, each in passes.items() if name != "forward"}}
    made = Costs(base | {"cells": base["cells"] | {"3x3": cells}, "pack": {"winograd": 7.0}, "weight": weight})
    edge = Layer("3x3", 64.0, macs=1000, weights=10, inputs=400, tile_ratio=2.0, input_tile_ratio=3.0)
    for name, packs, want in (
        ("forward", True, 1 + 7 * 10 + 1000 * 2 * 5),
        ("forward", False, 1 + 1000 * 2 * 5),
        ("weight_grad", True, 1 + 2 * 10 + 1000 * 2 * 5),
        ("input_grad", False, 1 + 3 * 10 + 1000 * 3 * 5),
    ):
        assert made.ms(edge, name, "winograd", 0.3, packs=packs) == pytest.approx(1e-6 * want), name


def test_a_cell_gives_back_what_was_measured():
    layer = Layer("3x3", 64.0, macs=1000, weights=10, inputs=400, tile_ratio=1.5, input_tile_ratio=2.0)
    low = {("weight_grad", "winograd"): 9000.0, ("input_grad", "winograd"): 7000.0, ("weight_grad", "event"): 5000.0}
    calls, weight = {"winograd": 100.0, "event": 200.0}, {"weight_grad": {"winograd": 30.0, "event": 20.0}}
    cell = costs._cell(layer, [low, {("weight_grad", "event"): 8000.0}], calls, weight)
    base = table().table
    cells = base["cells"] | {"3x3": dict.fromkeys(map(str, costs.WIDTHS), cell)}
    made = Costs(base | {"cells": cells, "call": base["call"] | calls, "weight": {"3x3": weight}})
    for (name, way), ns in low.items():
        assert made.ms(layer, name, way, costs.RATES[0], packs=True) == pytest.approx(1e-6 * ns)
    assert made.ms(layer, "weight_grad", "event", costs.RATES[1], packs=True) == pytest.approx(1e-6 * 8000)


@pytest.mark.parametrize(("own", "all_", "threads", "want"), [(6, 8, 2, 6), (1, 8, 2, 4), (5, 9, 1, 5)])
def test_a_call_takes_the_callers_time_or_its_share_of_all_threads(monkeypatch, own, all_, threads, want):
    """Work that no other thread helps with, work that others do while the caller is held up, one beside a loader."""
    clocks = {"thread_time_ns": iter([0, own]), "process_time_ns": iter([0, all_])}
    for name, times in clocks.items():
        monkeypatch.setattr(costs.time, name, lambda times=times: next(times))
    monkeypatch.setattr(costs.sys, "platform", "linux")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert costs._ns(lambda: None) == want


def test_a_layer_by_hand():
    conv = costs.layer_of(torch.Size((2, 8, 9, 9)), torch.zeros(32, 8, 3, 3), 2, 1)
    made = {"macs": 2 * 25 * 32 * 8 * 9, "weights": 32 * 8 * 9, "inputs": 2 * 8 * 81}
    assert conv == Layer("3x3 stride 2", 16.0, **made, tile_ratio=(8 / 5) ** 2, input_tile_ratio=(12 / 5) ** 2)
    linear = costs.layer_of(torch.Size((5, 8)), torch.zeros(2, 8), 1, 0)
    assert linear == Layer("linear", 4.0, macs=5 * 16, weights=16, inputs=40)


def test_the_table_is_measured_once_and_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path))
    monkeypatch.setattr(costs, "_given", [])
    monkeypatch.setattr(costs, "KINDS", {"3x3": (3, 1)})
    monkeypatch.setattr(costs, "WIDTHS", {16: (2, 4)})
    monkeypatch.setattr(costs, "TRIES", 2)
    costs._of_key.cache_clear()
    first = costs.costs()
    (path,) = (tmp_path / "costs").glob("*.json")
    kept = path.read_text()
    assert json.loads(kept)["key"] == costs.key()
    assert set(first.table["cells"]["3x3"]["16"]["forward"]) == {"dense", "event", "winograd", "lookup"}
    monkeypatch.setattr(costs, "measure", lambda: pytest.fail("measured again"))
    costs._of_key.cache_clear()  # as another process would
    assert costs.costs() == first
    assert costs.costs().fingerprint == first.fingerprint
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)  # another machine, as far as times go
        monkeypatch.setattr(costs, "measure", lambda: first)
        costs.costs()
    finally:
        torch.set_num_threads(threads)
    assert len(list((tmp_path / "costs").glob("*.json"))) == 2
    path.write_text(kept[:40])
    costs._of_key.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert costs.costs() == first
    assert "is damaged and is measured again" in caplog.text
    assert path.read_text() == kept
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path / "file"))
    costs._of_key.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert costs.costs() is None
    assert "conv_impl auto is dense" in caplog.text
    costs._of_key.cache_clear()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("weight",), None),
        (("pack",), None),
        (("call", "event"), None),
        (("call", "dense"), -1.0),
        (("pack", "event"), float("inf")),
        (("scan",), [1.0]),
        (("cells", "1x1", "16"), {}),
        (("cells", "3x3", "64", "forward", "dense"), [1.0]),
        (("cells", "3x3", "64", "forward", "dense"), [float("nan"), 0.0]),
        (("cells", "linear"), None),
    ],
)
def test_a_damaged_table_is_refused(place, value):
    damaged = json.loads(json.dumps(table().table))
    *way, last = place
    part = damaged
    for name in way:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    with pytest.raises((ValueError, KeyError)):
        Costs(damaged)


def test_a_disturbed_measurement_goes_on_until_its_least_time_comes_twice(monkeypatch):
    took = {"calm": [9] + [10] * 20, "disturbed": [9, 90, 80, 70, 60, 10, 40, 10, 10, 10, 10]}
    calls = dict.fromkeys(took, 0)

    def run(name):
        calls[name] += 1
        return float(took[name][calls[name] - 1])

    monkeypatch.setattr(costs, "_ns", lambda run: run())
    found = costs._best_ns({name: lambda name=name: run(name) for name in took})
    assert found == {"calm": 10.0, "disturbed": 10.0}  # the first call, which warms up, does not count
    assert calls == {"calm": 1 + costs.TRIES, "disturbed": 8}
