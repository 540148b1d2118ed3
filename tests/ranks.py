"""Functions on several processes of this machine, connected by gloo through a file: no port, no launcher.

usage: python -m tests.ranks MODULE:FUNCTION RANK WORLD FOLDER
"""

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_ranks(function: str, world: int, folder: Path) -> list[Any]:
    """What `MODULE:FUNCTION(folder)` returns on each rank, through JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.ranks", function]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


def main(function: str, rank: int, world: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional  # imported later, its defaults would keep the group

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(folder)
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    gc.collect()  # a network in a cycle of references may hold the group
    dist.destroy_process_group()
    # a thread of gloo that is left behind may ask for the interpreter's lock while Python ends, and abort the process
    assert not (left := gloo_threads()), f"the process group is still held by somebody, its threads run: {left}"


def gloo_threads() -> list[str]:
    """The threads of gloo in this process; nothing where the system has no /proc."""
    names = []
    for file in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            names.append(file.read_text().strip())
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
