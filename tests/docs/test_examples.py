"""Every Python example of README and docs runs, and every public name has one."""

import ast
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"<!-- before\n(?P<before>.*?)-->|^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = re.compile(r"^# needs: (\w+)$", re.MULTILINE)
BEFORE = {
    "README.md": """
import torch
from torch import nn
from mpd_agl.nn import Readout, SpikingBlock
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.readout = SpikingBlock(nn.Linear(6, 8, bias=False)), Readout(8, 3)
    def forward(self, x):
        return self.readout(self.block(x.unsqueeze(0), num_steps=2))
net, images, train = Net(), torch.randn(16, 6), lambda net: None
""",
    "active.md": """
import torch
from mpd_agl.models import create_model
images = torch.randn(1, 3, 32, 32)
""",
}
"""What a page's examples take for granted: the reader's own network and images."""
PUBLIC = {
    "core.md": ("mpd_agl.core", None),
    "nn.md": ("mpd_agl.nn", None),
    "models.md": ("mpd_agl.models", None),
    "adapt.md": ("mpd_agl.adaptation", None),
    "analysis.md": ("mpd_agl.diagnosis", None),
    "data.md": ("mpd_agl.data", None),
    "mpd_agl.md": ("mpd_agl", ("adapt", "release", "diagnose", "Monitor", "create_model", "fit")),
}
"""The pages of the reference and the subpackages whose exported names they hold."""


def blocks(page: Path) -> list[str]:
    """Hidden preparations and examples, in order."""
    return [m["before"] or m["code"] for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one empty folder, each with what the ones before it left."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries
        for number, code in enumerate([BEFORE.get(page.name, ""), *blocks(page)]):
            if code.startswith("# not run"):
                continue
            for needed in NEEDS.findall(code):
                pytest.importorskip(needed)
            exec(compile(code, f"{page.name}, example {number}", "exec"), names)


@pytest.mark.parametrize("page", PUBLIC)
def test_every_public_name_stands_in_the_reference_with_an_example(page: str) -> None:
    package, chosen = PUBLIC[page]
    module = importlib.import_module(package)
    text = (ROOT / "docs/api" / page).read_text(encoding="utf-8")
    used = {
        n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else n.name
        for code in blocks(ROOT / "docs/api" / page)
        for n in ast.walk(ast.parse(code))
        if isinstance(n, ast.Name | ast.Attribute | ast.alias)
    }
    for name in chosen or module.__all__:
        assert re.search(rf"^::: mpd_agl[\w.]*\.{name}$", text, re.MULTILINE), f"{name} is not in docs/api/{page}"
        assert name in used or ">>>" in documented(getattr(module, name)), f"{package}.{name} has no example"


def documented(value: object) -> str:
    """Its docstring, and those of a class's own methods."""
    own = [value, *vars(value).values()] if inspect.isclass(value) else [value]
    return "\n".join(inspect.getdoc(v) or "" for v in own if callable(v))
