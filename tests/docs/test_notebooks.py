"""The cells of every notebook run in order, with a few steps of training; they are stored without outputs."""

import json
import types
import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

BOOKS = sorted((Path(__file__).parent.parent.parent / "notebooks").glob("*.ipynb"))
NEEDS = {"2_diagnose": "spikingjelly"}


@pytest.fixture(autouse=True)
def torch_as_before():
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_its_cells_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPD_AGL_QUICK", "1")
    mpl.use("Agg")
    shown = types.ModuleType("IPython.display")  # a kernel's own; here there is none
    shown.Image = lambda name: Path(name).read_bytes()
    monkeypatch.setitem(__import__("sys").modules, "IPython.display", shown)
    names: dict[str, object] = {"__name__": "notebook"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.stem in NEEDS:
            pytest.importorskip(NEEDS[path.stem])
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
        plt.close("all")


def test_there_are_four_without_outputs():
    assert len(BOOKS) == 4
    for path in BOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(cell["cell_type"] != "code" or cell["outputs"] == [] for cell in cells)
        assert path.stat().st_size < 200_000
