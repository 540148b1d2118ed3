"""One thread per test process: the processes share the cores, and threads that wait for each other on busy cores only
spin.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
