"""A run on the workers of a Ray cluster: Ray Train starts the processes, the library does the rest.

    pip install "mpd-agl[ray]"
    python examples/ray_train.py --workers 2 -- --preset demo --name on-ray --runs-dir /a/folder/that/rank/0/can/write

Ray sets up no more than the environment that torchrun would; the ranks, their shared batches and the checkpoints are
those of `mpd-agl launch`. A worker that fails makes Ray start all of them again, and the run goes on from its newest
whole checkpoint.
"""

import argparse
import os

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from mpd_agl.cli import main as mpd_agl
from mpd_agl.train.distributed import BACKENDS


def train(config):
    here = ray.train.get_context()
    os.environ["TORCHELASTIC_RUN_ID"] = config["job"]  # the same job again continues its run
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(here.get_world_rank()), str(here.get_world_size())
    os.environ["LOCAL_RANK"] = str(here.get_local_rank())
    code = mpd_agl(["train", *config["arguments"]])
    if code:
        raise RuntimeError(f"mpd-agl train ended with code {code}")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--gpu", action="store_true", help="one GPU per worker")
    p.add_argument("--job", default="mpd-agl")
    p.add_argument("arguments", nargs=argparse.REMAINDER)
    a = p.parse_args()
    arguments = [word for word in a.arguments if word != "--"]
    TorchTrainer(
        train,
        train_loop_config={"arguments": arguments, "job": a.job},
        torch_config=TorchConfig(backend=BACKENDS if a.gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=a.workers, use_gpu=a.gpu),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
