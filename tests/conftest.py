"""One thread per test process: the processes share the cores, and threads that wait for each other on busy cores only
spin. Convolutions are dense unless a test gives a table of costs: no test's numbers depend on this machine's speed.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from mpd_agl.kernels import costs

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_costs():
    with costs.using(None):
        yield
