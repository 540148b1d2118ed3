"""The section on skipping zeros: a dot and a row per layer, sums that can be checked by hand."""

import importlib.util
from pathlib import Path

from mpd_agl.report import read_run
from mpd_agl.report.convs import convs

spec = importlib.util.spec_from_file_location("report_runfolder", Path(__file__).with_name("runfolder.py"))
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)


def choice(taken, rate, dense, event):
    return {"taken": taken, "rate": rate, "dense_ms": dense, "event_ms": event, "training": True}


MEASURED = [
    {"step": 0, "layers": {"conv2": choice("dense", 0.5, 1.0, 2.0)}},
    {"step": 100, "layers": {"conv2": choice("event", 0.125, 9.0, 3.0), "conv3": choice("dense", 0.4, 5.0, 6.25)}},
]


def test_dots_and_rows_of_the_last_measurement(tmp_path):
    run = read_run(made.write(tmp_path / "first", made.record(convs=MEASURED)))
    section = convs(run)
    text = section.sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith(
        "At step 101 1 of 2 layers were faster event-driven; the most in conv2, 3.00 times at 12.5 %"
    )
    assert "took 8.0 ms where all dense take 14.0 ms" in text
    assert [row[0] for row in section.table.rows] == ["conv2", "conv3"]
    assert [row[4:] for row in section.table.rows] == [["3.00", "event"], ["0.80", "dense"]]
    dots = [line.get_xydata().tolist() for line in section.panels[0].figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == [[[0.125, 3.0]], [[0.4, 0.8]]]


def test_a_run_that_measured_nothing_has_no_section(tmp_path):
    assert convs(read_run(made.write(tmp_path / "first"))) is None
