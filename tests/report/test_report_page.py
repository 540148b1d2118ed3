"""The page: what is on it, that it is the same bytes, that it asks for nothing and runs nothing."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from mpd_agl.cli import main
from mpd_agl.report import build_page, read_run
from mpd_agl.report.page import sections
from mpd_agl.report.scores import scores
from tests.report import runfolder as made

PANELS = [
    *("loss", "accuracy", "kappa-t1", "kappa-t2", "available-t1", "available-t2", "available-t3"),
    *("membrane-1", "membrane-2", "membrane-3", "rates", "rates-training", "energy"),
    *("gamma", "gamma-channels", "beta", "beta-channels", "gamma-spread", "beta-spread"),
]

FEW = ["loss", "accuracy"]


class Page(HTMLParser):
    """Elements, attributes and text, as a parser sees them."""

    def __init__(self, data: bytes):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(data.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, k, v or "") for k, v in attrs]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture
def few_figures(monkeypatch):
    """Drawing takes its time: where a test is not about all the figures, only these."""
    monkeypatch.setattr("mpd_agl.report.page.sections", lambda run: [scores(run)])


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("one") / "first")


@pytest.fixture(scope="module")
def page(one):
    return build_page([read_run(one)])


def test_every_figure_is_there_once_with_its_sentence(page):
    got = Page(page)
    svgs = re.findall(rb'<svg [^>]*role="img" aria-label="[^"]+"', page)
    assert len(svgs) == len(PANELS)
    for key in PANELS:
        assert page.count(f'id="r1-{key}-figure_1"'.encode()) == 1, key
    ids = [v for _, k, v in got.attributes if k == "id"]
    assert len(ids) == len(set(ids))
    sections = re.findall(r'data-figures="(\d+)">\s*<h2>[^<]+</h2>\s*<p class="see">([^<]+)</p>', page.decode())
    assert [int(n) for n, _ in sections] == [2, 2, 3, 3, 2, 1, 6]
    assert all(s.strip().endswith(".") for _, s in sections)


def test_the_headline_is_the_last_epoch_and_best_is_labelled(page):
    text = Page(page).text
    assert re.search(r"Test accuracy, last epoch \(3\) 91\.00 %", text)
    assert re.search(r"Best on the test set \(epoch 2\); optimistic, not the result 93\.00 %", text)
    assert "mpd-agl on mnist5k" in text
    for fact in ("0123abcd, with changed files", "torch 2.10.0", "a processor", "sha256 bb", "95 s"):
        assert fact in text


def test_sentences_say_what_the_numbers_say(page):
    text = Page(page).text
    assert "Training loss went from 1 to 0.333; test loss is 0.367 at epoch 3, the lowest of the run" in text
    first, last = made.layer(2, 1), made.layer(2, 26)
    assert f"moved most in conv3, from {first['kappa_T'][-1]:.3g} to {last['kappa_T'][-1]:.3g}" in text
    assert "fewest in conv3 (34.9 %), most in stem (44.9 %)" in text
    ann, snn = 901_000 * 4.6e-9, (240_000 * 0.9 + 303_000 * 4.6) * 1e-9
    assert f"takes {1e3 * snn:.3g} µJ, {100 * snn / ann:.1f} % of the ANN's {1e3 * ann:.3g} µJ" in text


def test_the_same_records_give_the_same_bytes(one, page):
    code = (
        "import sys; from pathlib import Path; from mpd_agl.report import *; "
        "sys.stdout.buffer.write(build_page([read_run(Path(sys.argv[1]))])); assert 'torch' not in sys.modules"
    )
    other = subprocess.run([sys.executable, "-c", code, str(one)], capture_output=True, check=True)
    assert other.stdout == page


def check_alone(data):
    """No script, nothing fetched: every address is inside the page."""
    got = Page(data)
    assert b"http:" not in data
    assert b"https:" not in data
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form", "video", "audio"} & set(got.tags)
    for _, key, value in got.attributes:
        assert not key.startswith("on"), key
        if key in ("href", "xlink:href", "src", "action", "data", "srcset", "poster", "background"):
            assert value.startswith(("#", "data:image/png;base64,")), value
    assert not re.search(rb"@import|url\((?!#)", data)
    assert b"default-src 'none'" in data


EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(2)> $\\frac{$ _%s {{ 7*7 }} & é'


def test_it_asks_for_nothing(page):
    check_alone(page)


def test_names_are_inert(tmp_path):
    evil = {EVIL: made.layer(0, 1), "_$y": made.layer(2, 1)}
    lines = [{"log": "monitor", "step": 1, "epoch": 1, "layers": evil}, made.epoch(1)]
    warning = {"log": "warning", "kind": EVIL, "layer": EVIL, "text": EVIL, "step": 1, "epoch": 1}
    table = made.changed(made.record(EVIL, epochs=1), config__method=EVIL, hardware__cpu=EVIL, versions__torch=EVIL)
    table["energy"]["layers"][0]["name"] = table["energy"]["rates_from"] = EVIL
    runs = [made.write(tmp_path / "a", table, [*lines, warning])]
    runs += [made.write(tmp_path / "b", {**table, "name": "_second$"}, lines[1:])]
    data = build_page([read_run(r) for r in runs])
    check_alone(data)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data.decode()
    assert "{{ 7*7 }}" in Page(data).text
    assert Page(data).text.count("<script>alert(1)</script>") > 10


def test_comparison(tmp_path, few_figures):
    seeds = [made.changed(made.record(f"s{s}"), config__seed=s) for s in range(3)]
    seeds[2] = made.changed(seeds[2], config__method="lsg", final__test_accuracy=0.95)
    lines = made.log_lines(detail=False)
    other = [*lines[:-1], {**lines[-1], "test_accuracy": 0.95}]
    runs = [made.write(tmp_path / f"r{i}", t, other if i == 2 else lines) for i, t in enumerate(seeds)]
    data = build_page([read_run(r) for r in runs])
    check_alone(data)
    text = Page(data).text
    assert "Run 3: s2 ends highest, with 95.00 % test accuracy, 4.00 points above run 2: s1" in text
    for key in ("accuracy", "loss", "available", "rate", "kappa-layers", "available-layers"):
        assert data.count(f'id="c-compare-{key}-figure_1"'.encode()) == 1, key
    assert re.search(r"mpd-agl 3 2 91\.00 % 0\.00 91\.00, 91\.00", text)  # mean and spread over two seeds
    assert re.search(r"What differs .* method mpd-agl mpd-agl lsg seed 0 1 2", text)
    assert data.count(b"<article") == 3


def test_command_writes_page_and_figures(one, tmp_path, capsys, few_figures):
    out = tmp_path / "page.html"
    out.write_text("old")
    assert main(["report", str(one), "-o", str(out), "--figures", str(tmp_path / "figures")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {out}"
    assert out.read_bytes().startswith(b"<!doctype html>")
    files = sorted(p.name for p in (tmp_path / "figures").iterdir())
    assert files == sorted(f"{key}.{suffix}" for key in FEW for suffix in ("svg", "pdf"))
    before = {p.name: p.read_bytes() for p in (tmp_path / "figures").iterdir()}
    assert before["loss.pdf"].startswith(b"%PDF")
    assert b"Date" not in before["loss.pdf"]
    assert b"<dc:date>" not in before["loss.svg"]
    assert b"var(--" not in before["loss.svg"]
    assert main(["report", str(one), "--figures", str(tmp_path / "figures")]) == 0  # beside the run
    assert (one / "report.html").read_bytes() == out.read_bytes()
    assert {p.name: p.read_bytes() for p in (tmp_path / "figures").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


def test_a_real_run_has_all_that_the_page_shows(tmp_path, capsys):
    tiny = "--model.name cnn8 --model.width_mult 0.03125 --data.train-samples 24 --data.test-samples 20"
    loop = "--data.name mnist5k --train.epochs 1 --train.batch-size 12 --train.threads 1 "
    loop += "--monitor.every 1 --name real --quiet --runs-dir"
    assert main(["train", *tiny.split(), *loop.split(), str(tmp_path)]) == 0
    run = read_run(tmp_path / "real")
    assert len(run.detailed) == len(run.snapshots) == 2
    energy = run.record.energy
    assert energy["ann"]["macs"] == run.record.network["macs_per_step"]
    assert energy["rates_from"] == "trained weights, 20 test samples"
    for row in energy["layers"][1:-1]:
        assert row["additions"] == pytest.approx(row["rate_in"] * 2 * row["macs"])
    keys = [panel.key for section in sections(run) for panel in section.panels]
    assert {k for k in PANELS if not k.endswith("t3")} <= set(keys)
    assert [k for k in keys if k.startswith("membrane")] == [f"membrane-{i}" for i in range(1, 8)]
