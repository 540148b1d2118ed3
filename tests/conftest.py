"""One thread per test process: the processes share the cores, and threads that wait for each other on busy cores only
spin. Convolutions are dense unless a test gives a table of costs: no test's numbers depend on this machine's speed.

Without a GPU, Triton interprets its kernels on the CPU. It reads that setting when it is imported, so it is made here,
before anything can import it.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
from mpd_agl.ops.conv import costs

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_costs():
    with costs.using(None):
        yield
