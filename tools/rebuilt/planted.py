"""Mutants planted one at a time in a copy of this tree: the tests that are named must kill each."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tools.rebuilt.compare import Line
from tools.rebuilt.table import MUTANTS, Mutant
from tools.rebuilt.trees import copy_tree, pytest

SUFFIXES = (".py", ".cpp", ".h")
FAILED_TESTS = 1
"""pytest's exit code where a test failed; others are errors of collection, which kill nothing."""


def plant(tree: Path, mutant: Mutant) -> tuple[Path, str] | str:
    """Write the mutant; the file and its text before, or why it cannot be planted. White space may differ."""
    pattern = re.compile(r"\s+".join(re.escape(word) for word in mutant.text.split()))
    found = []
    for file in sorted((tree / "src").rglob("*")):
        if file.suffix in SUFFIXES:
            text = file.read_text(encoding="utf-8")
            found += [(file, text, match) for match in pattern.finditer(text)]
    if len(found) != 1:
        return f"LOST: its text is {len(found)} times in src, plant it again"
    file, text, match = found[0]
    write(file, text[: match.start()] + mutant.instead + text[match.end() :])
    return file, text


def write(file: Path, text: str) -> None:
    """Also where the size stays and the clock has not moved: byte code of before must not be taken."""
    before = file.stat().st_mtime
    file.write_text(text, encoding="utf-8")
    os.utime(file, (before + 2, before + 2))


def compiled(tree: Path) -> str:
    """Build the native library of a copy; an error's last line."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    reasons = list((tree / "src").rglob("_native_build_error.txt"))
    return f"does not compile: {done.stderr[-200:]}" if done.returncode or reasons else ""


def judge(tree: Path, mutant: Mutant) -> Line:
    """Plant, test, take away."""
    wanted = sorted(str(f.relative_to(tree)) for glob in mutant.tests for f in (tree / "tests").rglob(glob))
    if not wanted:
        return Line(False, mutant.name, f"LOST: no tests are called {' '.join(mutant.tests)}")
    planted = plant(tree, mutant)
    if isinstance(planted, str):
        return Line(False, mutant.name, planted)
    file, text = planted
    libraries = {so: so.read_bytes() for so in (tree / "src").rglob("*.so")} if file.suffix != ".py" else {}
    try:
        if libraries and (why := compiled(tree)):
            return Line(False, mutant.name, why)
        code, last = pytest(tree, wanted)
    finally:
        write(file, text)
        for so, content in libraries.items():
            so.write_bytes(content)
    verdict = {0: "SURVIVED", FAILED_TESTS: "killed"}.get(code, f"pytest ended with {code}")
    return Line(code == FAILED_TESTS, mutant.name, f"{verdict} by {' '.join(mutant.tests)}: {last}")


def mutants(folder: Path, jobs: int, chosen: list[str]) -> Iterator[Line]:
    """planted mutants are killed by the tests that are named, which pass without them (20 minutes)"""
    trees: Queue[Path] = Queue()
    for i in range(jobs):
        trees.put(copy_tree(folder / f"copy{i}"))

    def with_tree(mutant: Mutant) -> Line:
        tree = trees.get()
        try:
            return judge(tree, mutant)
        finally:
            trees.put(tree)

    wanted = [m for m in MUTANTS if not chosen or m.name in chosen]
    tree = folder / "copy0"
    files = sorted({str(f.relative_to(tree)) for m in wanted for g in m.tests for f in (tree / "tests").rglob(g)})
    code, last = pytest(tree, files)
    yield Line(code == 0, "without a mutant", f"{len(files)} files of tests: {last}")
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(with_tree, wanted)
