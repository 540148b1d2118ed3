"""`mpd-agl bench` without a command: one table. No test times anything."""

from benchmarks.workload import Workload

from benchmarks import contenders, overview
from tests.benchmarks.test_bench import record


def test_every_work_and_contender_is_known():
    for setting, names in overview.WORKS.values():
        workload = Workload(**setting)
        assert all(workload.work in contenders.CONTENDERS[name].works for name in names)
        assert set(names) <= set(overview.LABELS)
        assert names[0] == "ours"


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
