"""Figures on pages are their records': `tools.pages` finds those that are not, and writes them."""

import json
from pathlib import Path

import pytest

from tests.faults import table as faults
from tools import pages, pretrained

ROOT = Path(__file__).parents[2]
RECORD = {
    "runs": {"a/b": {"accuracy": 0.5}, "c": {"accuracy": 0.7}},
    "cells": [{"method": "lsg", "at": 1, "score": "97.00 ± 0.10"}, {"method": "lsg", "at": 2, "score": 1234567.0}],
    "table": {"head": ["method", "%", "note"], "rows": [["LSG", "1|2", ""], ["AGR", "2", "x"], ["PSG", "3", ""]]},
}


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(RECORD))
    (tmp_path / "two.json").write_text(json.dumps({"runs": {"d": {"accuracy": 0.9}}}))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "like", "shown"),
    [
        ("one.json runs/a%2Fb/accuracy; x100", "49.9", "50.0"),
        ("one.json runs/*/accuracy; mean", "9.99", "0.60"),
        ("*.json runs/*/accuracy; x100; max", "1", "90"),
        ("one.json runs/*/accuracy; std", "0.0000", "0.1414"),
        ("one.json cells/method=lsg&at=1/score", "9", "97"),
        ("one.json cells/method=lsg&at=1/score/1", "+9.99", "+0.10"),
        ("one.json cells/1/score", "9", "1,234,567"),
        ("one.json cells/1/score; x1e-9", "2e-1", "1e-03"),
        ("one.json table/rows/0=AGR/1", "1", "2"),
    ],
)
def test_a_figure_keeps_its_form(docs, source, like, shown):
    assert pages.figure(source, docs, like) == shown


def test_a_page_is_filled_with_figures_and_tables(docs):
    text = (
        "It has 12.3<!--=best--> %, not 5.\n\n<!--=methods-->\n| old |\n| --- |\n\nAfter.\n\n"
        "<!-- records\nbest = one.json runs/c/accuracy;\n  x100\nmethods = one.json table; columns 0 1; rows 2 0\n-->\n"
    )
    new = pages.filled(text, docs)
    assert new.startswith("It has 70.0<!--=best--> %, not 5.\n")
    assert "<!--=methods-->\n| method | % |\n| --- | --- |\n| PSG | 3 |\n| LSG | 1\\|2 |\n\nAfter." in new
    assert pages.filled(new, docs) == new
    assert pages.unused(new.replace("<!--=best-->", "")) == ["best"]
    assert pages.unused("a word<!--=no-number-->") == ["no-number"]


def test_a_page_that_differs_is_named_and_mended(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/one.json").write_text(json.dumps(RECORD))
    page = tmp_path / "page.md"
    page.write_text("12<!--=a--> %\n\n<!-- records\na = one.json runs/c/accuracy; x100\n-->\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.main(["--check", str(page)]) == 1
    assert "70<!--=a--> %" in capsys.readouterr().out
    assert page.read_text().startswith("12<")
    assert pages.main([str(page)]) == 0
    assert page.read_text().startswith("70<")
    assert pages.main(["--check", str(page)]) == 0
    page.write_text("12<!--=b--> %\n")
    assert pages.main(["--check", str(page)]) == 2
    assert "KeyError 'b'" in capsys.readouterr().err


def test_every_figure_is_its_records(capsys):
    assert pages.main(["--check"]) == 0, capsys.readouterr()
    assert pages.definitions((ROOT / "README.md").read_text(encoding="utf-8"))


def test_pages_of_other_programs_are_what_they_write():
    assert faults.table(ROOT / "docs/results/faults") in (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert (ROOT / "docs/pretrained.md").read_text(encoding="utf-8") == pretrained.page(Path(pretrained.CARDS))
