"""What ranks say to each other in a training step, and how long it takes on this machine with gloo.

usage: python benchmarks/communication.py [--world 2] [--repeats 30] [--out FILE]

Counts come from a real step of the network on two ranks (every call is counted), times from exchanging the same
tensors with nothing else to do.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mpd_agl import records
from mpd_agl.models import create_model
from mpd_agl.nn import TdBatchNorm, share_batch
from mpd_agl.ops import Replicas

NETWORKS = {
    "resnet19 x1, T=2": ("resnet19", {"width_mult": 1.0, "num_steps": 2}),
    "resnet19 x0.125, T=2": ("resnet19", {"width_mult": 0.125, "num_steps": 2}),
}


class Counted(Replicas):
    """Counts every exchange and its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(("sum", x.numel() * x.element_size()))
        return super().sum(x)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(("gather", x.numel() * x.element_size()))
        return super().gather(x)


def timed(action: Any, repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats):
        dist.barrier()
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return {"median_ms": round(1e3 * statistics.median(times), 3), "least_ms": round(1e3 * min(times), 3)}


def measure(name: str, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = create_model(name, image_size=32, **options)
    counted = Counted()
    share_batch(net, counted)
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    all_ = Replicas()
    gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    widest = max(m.num_features for m in net.modules() if isinstance(m, TdBatchNorm))
    return {
        "parameters": gradient.numel(),
        "gradient_bytes": gradient.numel() * 4,
        "tdbn_layers": sum(isinstance(m, TdBatchNorm) for m in net.modules()),
        "exchanges_per_step": len(counted.calls),
        "exchanged_bytes_per_step_and_rank": sum(size for _, size in counted.calls),
        "gradient_all_reduce": timed(lambda: dist.all_reduce(gradient), repeats),
        "widest_layer_gather": timed(lambda: all_.gather(torch.zeros(2 * widest + 1)), 5 * repeats),
        "widest_layer_sum": timed(lambda: all_.sum(torch.zeros(2, widest)), 5 * repeats),
        "control_sum_of_3": timed(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.float64)), 5 * repeats),
    }


def worker(a: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.world)
    found = {label: measure(name, options, a.repeats) for label, (name, options) in NETWORKS.items()}
    if a.rank == 0:
        record = {
            "what": "communication of a training step, gloo over the loopback of one machine",
            "command": f"python benchmarks/communication.py --world {a.world} --repeats {a.repeats}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "world": a.world,
            "networks": found,
            "load_average": [round(x, 1) for x in os.getloadavg()],
            "code": records.code(),
            "versions": records.versions(),
            "hardware": records.hardware(),
        }
        text = json.dumps(record, indent=1) + "\n"
        print(text)
        if a.out:
            a.out.write_text(text)
    dist.destroy_process_group()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--repeats", type=int, default=30)
    p.add_argument("--out", type=Path)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--store", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank is not None:
        worker(a)
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen([sys.executable, *sys.argv, "--rank", str(r), "--store", f"{folder}/store"])
            for r in range(a.world)
        ]
        codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
