"""What the monitors cost a training run: python benchmarks/monitors.py [--every 50]

Steps with and without a snapshot alternate in one process. The price is the difference of their medians, spread over
`every` steps.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from mpd_agl.diagnosis import Monitor
from mpd_agl.models import create_model
from mpd_agl.ops import reuse_pages


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--every", type=int, default=50)
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--width-mult", type=float, default=0.125)
    p.add_argument("--batch", type=int, default=100)
    p.add_argument("--num-steps", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    reuse_pages()
    torch.manual_seed(0)
    net = create_model("resnet19", width_mult=a.width_mult, num_steps=a.num_steps).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    x = torch.randn(a.batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (a.batch,))
    monitor = Monitor(net, every=2)
    times = {True: [], False: []}
    for number in range(2 * a.pairs + 4):
        looked = monitor.active
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
        monitor.step()
        if number >= 4:
            times[looked].append(time.perf_counter() - start)
    plain, looking = statistics.median(times[False]), statistics.median(times[True])
    share = (looking - plain) / (a.every * plain)
    print(
        f"step {1e3 * plain:.1f} ms, with a snapshot {1e3 * looking:.1f} ms: "
        f"{100 * share:.2f} % of training time at every {a.every}th step"
    )
    if a.json:
        a.json.write_text(
            json.dumps({"step_s": plain, "with_snapshot_s": looking, "every": a.every, "share": share}) + "\n"
        )


if __name__ == "__main__":
    main()
