"""Every number of README and docs is its record's: a record that changes while the text does not is found here."""

import json
from pathlib import Path

import pytest

from tests.docs.numbers import ROOT, declared, flat, text_of, uncovered
from tests.faults import table as faults
from tools import active_page, gpu_page, performance_page, pretrained

DECLARED = declared()


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", DECLARED["claim"], ids=lambda c: c["text"][:50])
def test_a_claim_is_made_of_its_records(claim):
    wanted = flat(text_of(claim))
    for name in claim["pages"]:
        assert wanted in flat(page(name)), f"{name} does not say: {wanted}"


@pytest.mark.parametrize("name", DECLARED["complete"])
def test_no_number_stands_alone(name):
    assert uncovered(name, page(name), DECLARED["claim"], DECLARED["exempt"]) == []


def test_a_number_that_nothing_holds_is_found():
    text = "It reaches 12.34 % in 3 epochs, 2.5x as fast; `x = 9.99` and v0.1 are none. "
    found = uncovered("page", text, [], [])
    assert ["12.34" in found[0], "2.5" in found[1], len(found)] == [True, True, 2]
    claim = {"pages": ["page"], "text": "It reaches 12.34 %", "values": []}
    assert uncovered("page", text, [claim], [{"pages": ["page"], "text": ["2.5x"], "why": ""}]) == []


def test_the_page_of_speed_is_what_its_tool_writes():
    folder, text = ROOT / "docs/results/performance", page("docs/performance.md").splitlines()
    records = performance_page.read(folder)
    lines = performance_page.target_table(records)
    now = [ROOT / each for each in performance_page.NOW if (ROOT / each).is_dir()]
    lines += performance_page.defaults(now, ROOT / "docs/performance.md")
    for name, record in records.items():
        if "ratios" in record and "contenders" in record:
            lines += performance_page.comparison(name, record, f"results/performance/{name}.svg")
    lines = "\n".join(lines).splitlines()
    assert len(lines) > 120
    assert [line for line in lines if line not in text] == []


def test_parts_between_marks_are_what_their_tools_write():
    active, gpu = page("docs/active.md"), page("docs/gpu.md")
    for name, make in (("active-table", active_page.table_lines), ("active-network", active_page.network_lines)):
        for level in ("", "-avx512"):
            lines = make(json.loads(page(f"docs/results/{name}{level}.json")))
            assert [line for line in lines if line not in active.splitlines()] == []
    made = gpu_page.expected_lines() + gpu_page.compiled_lines(json.loads(page("docs/results/gpu/compiled.json")))
    assert [line for line in made if line not in gpu.splitlines()] == []
    assert faults.table(ROOT / "docs/results/faults") in page("docs/reliability.md")


def test_the_page_of_trained_networks_is_what_its_tool_writes():
    assert page("docs/pretrained.md") == pretrained.page(Path(pretrained.BOX))
