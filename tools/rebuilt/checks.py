"""The checks; each yields one line per finding."""

import ast
import re
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.rebuilt.compare import Line, compare_curves, compare_logits
from tools.rebuilt.planted import mutants
from tools.rebuilt.trees import RANKED, ROOT, SRC, copy_tree, environment, measure, pytest, run, wheel

PACKAGE = SRC / "mpd_agl"
OLD_FOLDERS = ("kernels", "analysis", "interop", "adapt", "runs", "paper", "bench")
BANNED = {
    name: re.compile(pattern)
    for name, pattern in {
        **{word: re.escape(word) for word in ("is_noisy", "is_written", "is_fused", "oddity", "NOT_ASKED")},
        "sets_width": "sets_width",
        "__class__ =": r"__class__\s*=[^=]",
        "isinstance(args[5]": re.escape("isinstance(args[5]"),
    }.items()
}
RIVAL_FREE = ("core", "ops", "nn", "models", "train")
NN_LOADS = {"core", "ops", "nn", "errors", "plugins", "options"}
"""`plugins` and `options` too: registries read entry points, and a method names the table of its own options. Both
import nothing but `errors`."""
RUNS, MARGIN = 7, 1.1


@dataclass(kw_only=True)
class Work:
    """What the checks share."""

    cache: Path
    folder: Path
    groups: list[str] = field(default_factory=list)
    jobs: int = 1

    def both(self, group: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What 0.2's wheel and this tree give, one right after the other."""
        old = measure(group, wheel(self.cache), self.folder, "old")
        return old, measure(group, SRC, self.folder, "new")


def imports_rivals(text: str) -> bool:
    """Whether a source imports a module called `rivals`, also within a function or by its name as a text."""
    for node in ast.walk(ast.parse(text)):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("mpd_agl."):
            named = [str(node.value)]
        if any("rivals" in name.split(".") for name in named):
            return True
    return False


def banned(work: Work) -> Iterator[Line]:
    """no banned name, no old folder, torch._C in one file, no import of a rival below it"""
    texts = {file.relative_to(SRC): file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
    for name, pattern in BANNED.items():
        found = [f"{file.name}:{text[: m.start()].count(chr(10)) + 1}" for file, text in texts.items()
                 for m in pattern.finditer(text)]  # fmt: skip
        yield Line(not found, name, f"{len(found)} uses {' '.join(found[:6])}")
    private = [str(file) for file, text in texts.items() if re.search(r"\btorch\._C\b", text)]
    yield Line(len(private) <= 1, "torch._C", f"in {len(private)} files {' '.join(private)}")
    folders = [name for name in OLD_FOLDERS if (PACKAGE / name).exists()]
    yield Line(not folders, "old folders", f"{len(folders)} of {len(OLD_FOLDERS)} {' '.join(folders)}")
    rivals = [str(file) for file, text in texts.items() if file.parts[1] in RIVAL_FREE and imports_rivals(text)]
    yield Line(not rivals, "imports of rivals", f"{len(rivals)} files of {', '.join(RIVAL_FREE)} {' '.join(rivals)}")


def imports(work: Work) -> Iterator[Line]:
    """mpd_agl.nn loads what it should; import and --help no slower than 0.2's (processor time)"""
    code = "import sys, mpd_agl.nn; print(*{m.split('.')[1] for m in sys.modules if m.startswith('mpd_agl.')})"
    loaded = set(run([sys.executable, "-c", code], env=environment(SRC)).split())
    extra = sorted(loaded - NN_LOADS)
    yield Line(not extra, "import mpd_agl.nn", f"loads {' '.join(sorted(loaded))}; too many: {' '.join(extra) or '-'}")
    trees = {"0.2": wheel(work.cache), "new": SRC}
    for name, command in {
        "import mpd_agl": ["-c", "import mpd_agl"],
        "mpd-agl --help": ["-m", "mpd_agl", "-h"],
    }.items():
        times: dict[str, list[float]] = {which: [] for which in trees}
        for _ in range(RUNS + 1):
            for which, tree in trees.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                run([sys.executable, *command], env=environment(tree))
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times[which].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        old, new = (1e3 * statistics.median(t[1:]) for t in times.values())  # the first run writes byte code
        yield Line(new <= MARGIN * old, name, f"{new:.0f} ms, 0.2's {old:.0f} ms")


def curves(work: Work) -> Iterator[Line]:
    """50-step loss curves, blocks with state and two processes are 0.2's (3 minutes on a quiet machine)"""
    for group in work.groups or ["demo", "resnet19", "vggsnn", "state", RANKED]:
        old, new = work.both(group)
        for name, result in old.items():
            yield compare_curves(name, result, new[name])


def presets(work: Work) -> Iterator[Line]:
    """state dicts of 0.2's presets and trained networks load strictly and give the same logits"""
    old, new = work.both("presets")
    for name, result in old.items():
        yield compare_logits(name, result, new[name])


def names(work: Work) -> Iterator[Line]:
    """each public name of 0.2 resolves, or stands in CHANGELOG's section of 0.3"""
    _, new = work.both("names")
    section = re.search(r"^## 0\.3.*?(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S)
    said = set(re.findall(r"[\w-]+", section[0])) if section else set()
    for place in dict.fromkeys(name.rpartition(".")[0] for name in new):
        own = {n.rpartition(".")[2]: found for n, found in new.items() if n.rpartition(".")[0] == place}
        gone = sorted(name for name, found in own.items() if not found)
        silent = [name for name in gone if name not in said]
        listed = f", neither in CHANGELOG: {' '.join(silent)}" if silent else ""
        title = f"mpd_agl.{place}".rstrip(".")
        yield Line(not silent, title, f"{len(own)} names, {len(gone)} gone{listed}")


def rivals(work: Work) -> Iterator[Line]:
    """a copy without rivals passes the tests of core, ops, nn and models"""
    if not (PACKAGE / "rivals").is_dir():
        yield Line(False, "without rivals", "no folder rivals yet")
        return
    tree = copy_tree(work.folder / "without", leave_out=("src/mpd_agl/rivals/", "tests/rivals/"))
    for name in ("core", "ops", "nn", "models"):
        places = [place for place in (f"tests/{name}", f"src/mpd_agl/{name}") if (tree / place).is_dir()]
        code, last = pytest(tree, places, stop=False) if len(places) == 2 else (1, "no such folder")
        yield Line(code == 0, f"{name} without rivals", last)


CHECKS: dict[str, Callable[[Work], Iterator[Line]]] = {
    "banned": banned,
    "imports": imports,
    "names": names,
    "presets": presets,
    "curves": curves,
    "rivals": rivals,
    "mutants": lambda work: mutants(work.folder, work.jobs, work.groups),
}
CHECKS["mutants"].__doc__ = mutants.__doc__
