"""Bad records: one sentence each, and never a page that claims more than there is."""

import json
from pathlib import Path

import pytest

from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.report import build_page, check_comparable, read_run
from tests.refused import refused
from tests.report import runfolder as made


def test_another_versions_record_and_metrics(tmp_path):
    with refused("other-version", 2):
        read_run(made.write(tmp_path / "d", {**made.record(), "schema": 2}))
    lines = made.log_lines()
    del lines[0]["layers"]["conv2"]["exact_var_T"]
    with refused("other-version", "exact_var_T"):
        read_run(made.write(tmp_path / "a", lines=lines))
    lines = [{k: v for k, v in e.items() if k != "test_loss"} for e in made.log_lines()]
    with refused("other-version", "test_loss"):
        read_run(made.write(tmp_path / "b", lines=lines))
    table = made.record()
    del table["config"]["model"]["v_th"]
    with refused("other-version", "config.model.v_th"):
        read_run(made.write(tmp_path / "c", table))


def test_a_record_of_0_2_is_read(tmp_path, capsys):
    old = json.loads((Path(__file__).parents[2] / "docs/results/ann-narrow.json").read_text())
    lines = [made.epoch(1) | {"epoch": n, "step": 500 * n} for n in range(1, 24)]
    lines.append(made.epoch(1) | old["final"])
    folder = made.write(tmp_path / "runs" / "old", old, lines)
    (folder / "config.toml").write_text("")
    run = read_run(folder)
    assert (run.record.final["test_accuracy"], run.record.config["model"]["leak"]) == (0.8969, "two")
    assert b"89.69" in build_page([run])
    assert main(["runs", "--runs-dir", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.8969


def test_missing_run_and_missing_files(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"mpd-agl: no run at {tmp_path / 'none'}")
    run = made.write(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    with refused("no-file", "metrics.jsonl"):
        read_run(run)
    (run / "record.json").unlink()
    with refused("no-file", "record.json"):
        read_run(run)


def test_torn_metrics_are_told_and_not_used(tmp_path):
    lines = made.log_lines(monitored=False)
    whole = made.write(tmp_path / "whole", lines=lines)
    torn = made.write(tmp_path / "torn", made.record("whole"), lines[:-1], tail=b'{"log": "epoch", "epo')
    run = read_run(torn)
    assert run.epochs == read_run(whole).epochs[:-1]
    assert ["torn" in note for note in run.notes] == [True, False]
    assert "91.00\N{NO-BREAK SPACE}%" in build_page([run]).decode()  # the record's result stands
    assert read_run(whole).notes == []
    broken = made.write(tmp_path / "broken", lines=[])
    (broken / "metrics.jsonl").write_text('{"log": "ep\n{"log": "epoch"}\n')
    with refused("torn-metrics", "line 1"):
        read_run(broken)


def test_unfinished_run_says_so(tmp_path):
    table = made.changed(made.record(), status="running", final=None, energy=None, config__train__epochs=9)
    lines = made.log_lines(monitored=False)
    run = read_run(made.write(tmp_path / "a", table, lines, tail=b'{"ev'))
    assert not run.finished
    assert "not finished: 3 of 9 epochs" in build_page([run]).decode()
    failed = made.changed(table, status="failed", failure="training stopped at epoch 4: <nan>")
    page = build_page([read_run(made.write(tmp_path / "b", failed, lines))]).decode()
    assert "training stopped at epoch 4: &lt;nan&gt;" in page


def test_no_finished_epoch(tmp_path):
    run = made.write(tmp_path / "a", made.record(final=None, status="stopped"), made.log_lines()[:1])
    with refused("no-epoch", "--resume"):
        read_run(run)


def test_record_and_metrics_must_agree(tmp_path):
    table = made.changed(made.record(), final__test_accuracy=0.99)
    with refused("torn-metrics", "epoch 3"):
        read_run(made.write(tmp_path / "a", table))
    with refused("torn-metrics", "epoch 2"):
        read_run(made.write(tmp_path / "b", made.record(epochs=2)))
    with refused("torn-metrics"):
        read_run(made.write(tmp_path / "c", lines=[*made.log_lines(), *made.log_lines()]))


def test_mixed_data_is_refused(tmp_path, capsys):
    first = made.write(tmp_path / "a")
    other = made.write(tmp_path / "b", made.changed(made.record(), data__name="cifar10"))
    fewer = made.write(tmp_path / "c", made.changed(made.record(), data__test__samples=10))
    out = tmp_path / "out.html"
    assert main(["report", str(first), str(other), "-o", str(out)]) == 2
    assert f"one comparison needs one data set, got mnist5k ({first}) and cifar10" in capsys.readouterr().err
    with refused("not-comparable", "mnist5k", "samples"):
        build_page([read_run(first), read_run(fewer)])
    with refused("not-comparable"):
        check_comparable([read_run(first), read_run(tmp_path / "b" / ".." / "a")])
    assert not out.exists()


def test_places_that_cannot_be_written(tmp_path, capsys):
    run = made.write(tmp_path / "a", lines=made.log_lines(monitored=False))
    (tmp_path / "file").write_text("")
    for options in (["-o", tmp_path], ["-o", tmp_path / "no" / "x.html"], ["--figures", tmp_path / "file"]):
        assert main(["report", str(run), *map(str, options)]) == 2
        assert str(options[1].parent) in capsys.readouterr().err
    assert not (run / "report.html").exists()
    with pytest.raises(InputError, match="at least one run"):
        build_page([])
