"""Measures the first training step of a ResNet-19 with all channels on a machine that knows no costs yet, beside dense.

    python -m tools.first_step [-o docs/results/performance-avx512/first-step.json]

Each step runs in a process of its own with an empty cache folder, as after an installation: with the default, which has
to measure what each way to convolve costs here, and with dense convolutions. They take turns; medians.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from mpd_agl.records import canonical, code, hardware, versions, write_atomic

OUTPUT = Path("docs/results/performance-avx512/first-step.json")
ROUNDS, THREADS, BATCH = 3, 2, 16
STEP = f"""
import sys, time, torch
from mpd_agl.ops.step.memory import reuse_pages
from mpd_agl.models import create_model
reuse_pages()
torch.set_num_threads({THREADS})
torch.manual_seed(0)
net = create_model("resnet19", num_classes=10, num_steps=2, conv_impl=sys.argv[1])
x, y = torch.randn({BATCH}, 3, 32, 32), torch.randint(0, 10, ({BATCH},))
start = time.perf_counter()
torch.nn.functional.cross_entropy(net(x).mean(0), y).backward()
print(time.perf_counter() - start)
"""


def first_step(conv_impl: str) -> float:
    """Seconds of the first step in a process with an empty cache folder."""
    with tempfile.TemporaryDirectory() as empty:
        told = subprocess.run(
            [sys.executable, "-c", STEP, conv_impl],
            env=os.environ | {"MPD_AGL_CACHE": empty},
            check=True,
            capture_output=True,
            text=True,
        )
    return float(told.stdout)


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FILE", help=f"default {OUTPUT}")
    a = p.parse_args(argv)
    seconds: dict[str, list[float]] = {"auto": [], "dense": []}
    for _ in range(ROUNDS):
        for name, found in seconds.items():
            found.append(first_step(name))
    record = {"what": "python -m tools.first_step", "threads": THREADS, "batch": BATCH, "seconds": seconds}
    record |= {"median": {name: median(found) for name, found in seconds.items()}}
    record |= {"code": code(), "hardware": hardware(), "versions": versions()}
    write_atomic(a.output, canonical(record))
    print({name: round(value, 2) for name, value in record["median"].items()}, f"record: {a.output}")


if __name__ == "__main__":
    main()
