"""One thread per test process: the processes share the cores, and threads that wait for each other on busy cores only
spin.

Without a GPU, Triton interprets its kernels on the CPU. It reads that setting when it is imported, so it is made here,
before anything can import it.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

torch.set_num_threads(1)
