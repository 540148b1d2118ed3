"""Whether an installed wheel works: kernels against the written equations, a step of training, the embedded data.

cibuildwheel runs it for every wheel: python tools/try_wheel.py
"""

import sys
import tempfile

import torch

from mpd_agl.cli import main
from mpd_agl.core import lif
from mpd_agl.ops import backends_here, neuron

torch.manual_seed(0)
i_TNC, tau, kappa_T = torch.randn(3, 7, 5), torch.tensor(0.2), torch.ones(3)
wanted = lif(i_TNC, tau, kappa_T)[0]
works = [name for name, why in backends_here().items() if not why and name != "compiled"]  # that one takes minutes
for name in works:
    assert torch.equal(neuron(i_TNC, tau, kappa_T, num_steps=3, backend=name), wanted), name
    print(f"{name}: spikes as the equations have them")
print(f"native: {backends_here()['native'] or 'works'}")
few = "--data.train_samples 100 --data.test_samples 50 --train.batch_size 50 --train.epochs 1 --quiet --name tried"
with tempfile.TemporaryDirectory() as folder:
    best = ["--model.backend", works[0], "--runs-dir", folder]
    sys.exit(main(["train", "--preset", "demo", *best, *few.split()]))
