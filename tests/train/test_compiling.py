"""A start with backend `compiled` says so, and changes nothing of the run."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from mpd_agl.models import create_model
from mpd_agl.train.training import compile_first


class Two:
    @contextmanager
    def epoch(self, epoch, start_step=0):
        yield iter([(torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(6))])


def test_it_is_told_and_neither_weights_nor_random_numbers_move():
    net = create_model("cnn8", width_mult=0.0625, image_size=16, method="asgl", backend="eager").train()
    before = {n: b.clone() for n, b in net.state_dict().items()}
    state, said = torch.get_rng_state(), []
    config = SimpleNamespace(train=SimpleNamespace(accumulate=3))
    run = SimpleNamespace(net=net, train=Two(), config=config, stepper=SimpleNamespace(device=torch.device("cpu")))
    seconds = compile_first(run, said.append)
    assert len(said) == 2
    assert said[0].startswith("backend compiled: compiling")
    assert said[1] == f"backend compiled: ready after {seconds:.1f} s"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(b, before[n]) for n, b in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
