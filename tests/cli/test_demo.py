"""`mpd-agl demo` from its start to its picture, with a few steps of each run."""

import json

from PIL import Image

from mpd_agl.cli import main
from mpd_agl.report import read_run, windows


def test_it_ends_with_a_sentence_a_picture_a_report_and_the_next_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mpd_agl.report.page.sections", lambda run: [])  # tested elsewhere, and slow to draw
    assert main(["demo", "--quick", "--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 of 3: " in said
    assert "3 of 3: " in said
    fixed, fitting = (read_run(tmp_path / f"demo-{name}") for name in ("fixed", "fitting"))
    assert (fixed.method, fitting.method) == ("stbp-tdbn", "mpd-agl")
    assert fixed.record.config["model"]["v_th"] == fitting.record.config["model"]["v_th"] == 0.1
    # The sentence's numbers are the records'.
    accuracies = [json.loads((tmp_path / f"demo-{n}/record.json").read_text())["final"] for n in ("fixed", "fitting")]
    words = said.replace("\N{NO-BREAK SPACE}", " ")
    for found in accuracies:
        assert f"{100 * found['test_accuracy']:.1f} %" in words
    assert "the window of fixed width 1 holds" in words
    with Image.open(tmp_path / "demo/windows.png") as picture:
        assert picture.width > 1200
        assert picture.getpixel((2, 2))[:3] == (255, 255, 255)
    page = (tmp_path / "demo/report.html").read_text()
    assert "A window that stays, and one that fits" in page
    assert f"report   {tmp_path / 'demo/report.html'}" in said
    assert f"next     mpd-agl runs {tmp_path} --open demo" in said
    # Either order of the runs finds the pair; a run and itself at another threshold are none.
    digits = read_run(tmp_path / "demo")
    assert windows.pair([digits, fitting, fixed]) == (fixed, fitting)
    assert windows.pair([digits, fitting]) is None
    assert windows.windows([digits]) is None
