"""Runs the notebooks from top to bottom in a kernel of their own and stores them without their outputs.

    python tools/notebooks.py [NAME ...]      MPD_AGL_QUICK=1 trains a few steps only

The time of each is printed. The test suite runs their cells, quickly, without a kernel (tests/docs/test_notebooks.py).
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"


def main(names: list[str]) -> None:
    paths = [FOLDER / f"{n}.ipynb" for n in names] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        book = nbformat.read(path, as_version=4)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(book, timeout=600, resources={"metadata": {"path": folder}}).execute()
        size = sum(len(str(c.get("outputs", ""))) for c in book.cells)
        print(f"{path.name}: {time.perf_counter() - began:.0f} s, {size / 1e3:.0f} kB of outputs", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
