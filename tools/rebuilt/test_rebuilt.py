"""Whether the checker itself notices a difference: python -m pytest tools/rebuilt (not a part of `make test`)."""

from pathlib import Path

import pytest

from tools.rebuilt import compare
from tools.rebuilt.checks import imports_rivals
from tools.rebuilt.planted import plant
from tools.rebuilt.table import Mutant


def curve(*values: float, end: str = "a", step: float = 1.0) -> dict[str, object]:
    return {"values": [v.hex() for v in values], "anchored": [step.hex()], "end": end}


def test_a_curve_is_equal_to_the_last_bit_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    old, next_bit = curve(2.3, 2.0), curve(2.3, 2.0000000000000004)
    assert compare.compare_curves("demo", old, curve(2.3, 2.0)).holds
    assert not compare.compare_curves("demo", old, next_bit).holds
    assert not compare.compare_curves("demo", old, curve(2.3)).holds
    assert not compare.compare_curves("demo", old, curve(2.3, 2.0, end="b")).holds
    monkeypatch.setitem(compare.BITS_MAY_DIFFER, "demo", "sums in another order")
    assert compare.compare_curves("demo", old, next_bit).holds
    assert not compare.compare_curves("demo", old, curve(2.3, 1.9, step=1.001)).holds
    assert not compare.compare_curves("demo", old, curve(2.3, float("nan"), step=float("nan"))).holds


def test_logits_within_their_bound_that_show_something() -> None:
    old = {"values": [v.hex() for v in (0.1, 0.2, 0.3)], "classes": 2}
    assert compare.compare_logits("net", old, {"values": [v.hex() for v in (0.1, 0.2, 0.300009)]}).holds
    assert not compare.compare_logits("net", old, {"values": [v.hex() for v in (0.1, 0.2, 0.30002)]}).holds
    assert not compare.compare_logits("net", {**old, "classes": 3}, old).holds
    assert not compare.compare_logits("net", old, {"values": old["values"][:2]}).holds  # type: ignore[index]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from mpd_agl.rivals import tebn", True),
        ("from mpd_agl import ops, rivals", True),
        ('import_module("mpd_agl.rivals.asgl")', True),
        ("from ..rivals import tebn", True),
        ("def f():\n    from mpd_agl import (\n        ops,\n        rivals,\n    )", True),
        ("from mpd_agl.nn import norm  # the rivals have theirs", False),
    ],
)
def test_imports_of_rivals(line: str, found: bool) -> None:
    assert imports_rivals(line) is found


def test_a_mutant_is_planted_where_its_text_is_once(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "a.py"
    file.write_text("x = (1 +\n     tau)\ny = 2\n")
    mutant = Mutant("m", "x = (1 + tau)", "x = 1", ())
    assert plant(tmp_path, mutant) == (file, "x = (1 +\n     tau)\ny = 2\n")
    assert file.read_text() == "x = 1\ny = 2\n"
    assert str(plant(tmp_path, mutant)).startswith("LOST: its text is 0 times")
    file.write_text("x = (1 + tau)\nx = (1 + tau)\n")
    assert str(plant(tmp_path, mutant)).startswith("LOST: its text is 2 times")
