"""The public interface and the private interfaces of torch in use, frozen: a change of either is a decision.

`python -m tests.test_public` writes public.json again.
"""

import json
import re
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
STORED = HERE / "public.json"
SOURCES = HERE.parent / "src" / "mpd_agl"
SUBPACKAGES = ("core", "ops", "nn", "models", "data", "adaptation", "diagnosis", "export", "report", "train", "rivals")
PRIVATE = {  # CONTRIBUTING.md says why
    "torch._C": {"nn/called.py"},
    "torch._compile": {"adaptation/spike.py"},
    "_NormBase": {"nn/potential.py"},
    "_forward_hooks": {"nn/called.py"},
    "_load_from_state_dict": {"nn/potential.py", "adaptation/spike.py"},
}


def interface() -> dict[str, list[str]]:
    """What each subpackage offers: its `__all__`, and what `mpd_agl` itself resolves."""
    found = {name: sorted(getattr(import_module(f"mpd_agl.{name}"), "__all__", [])) for name in SUBPACKAGES}
    top = import_module("mpd_agl")
    found["mpd_agl"] = sorted(top._NAMES)
    return found


def test_the_public_interface_is_the_stored_one():
    assert interface() == json.loads(STORED.read_text())
    assert all(
        hasattr(import_module(f"mpd_agl.{p}"), n) for p, names in interface().items() if p != "mpd_agl" for n in names
    )


def test_private_interfaces_of_torch_are_used_where_they_are_listed():
    texts = {str(f.relative_to(SOURCES).as_posix()): f.read_text(encoding="utf-8") for f in SOURCES.rglob("*.py")}
    for name, places in PRIVATE.items():
        assert {place for place, text in texts.items() if name in text} == places, name
    unlisted = {m[0] for text in texts.values() for m in re.finditer(r"\btorch\._\w+", text)}
    assert unlisted == {"torch._C", "torch._compile"}


if __name__ == "__main__":
    STORED.write_text(json.dumps(interface(), indent=1) + "\n")
