"""The section on skipping zeros: a dot and a row per layer, sums that can be checked by hand."""

from mpd_agl.report import read_run
from mpd_agl.report.convs import convs
from tests.report import runfolder as made


def choice(taken, rate, dense, other, lists=0.0):
    ms = {"forward": {"dense": dense, "event": other}, "weight_grad": {"dense": 1.0, "winograd": 0.5}}
    return {"rate": rate, "ms": ms, "lists_ms": lists, "taken": {"forward": taken, "weight_grad": "winograd"}}


MEASURED = [
    {"step": 0, "layers": {"conv2": choice("dense", 0.5, 1.0, 2.0)}},
    {
        "step": 100,
        "layers": {"conv2": choice("event", 0.125, 9.0, 1.5, lists=0.5), "conv3": choice("dense", 0.4, 5.0, 6.0)},
    },
]


def test_dots_and_rows_of_the_last_measurement(tmp_path):
    run = read_run(made.write(tmp_path / "first", made.record(convs=MEASURED)))
    section = convs(run)
    text = section.sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith(
        "At step 100, 1 of 2 layers skipped zeros and 0 looked sums up in a pass; "
        "the most was gained in conv2, 4.00 times at 12.5 %"
    )
    assert "took 8.0 ms where all dense take 16.0 ms" in text
    assert [row[0] for row in section.table.rows] == ["conv2", "conv3"]
    assert [row[4:] for row in section.table.rows] == [
        ["4.00", "event", "winograd", ""],
        ["1.09", "dense", "winograd", ""],
    ]
    dots = [line.get_xydata().tolist() for line in section.panels[0].figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == [[[0.125, 4.0]], [[0.4, 6.0 / 5.5]]]


def test_a_run_that_measured_nothing_has_no_section(tmp_path):
    assert convs(read_run(made.write(tmp_path / "first"))) is None
