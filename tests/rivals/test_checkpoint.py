"""Any checkpoint over a rival's neuron or norm: the numbers of a plain pass, or a sentence."""

import pytest
import torch
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.nn import get_method, recompute
from tests.nn.checkpoints import CALLS, assert_checkpoint_changes_nothing
from tests.nn.parts import conv_block, inputs, noise

S_TNC = inputs(3, 4, 3, 8, 8)
METHODS = ("psg", "asgl", "deeptage", "ds-atgo", "trsg", "mpr", "diet", "slope-schedule")


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("method", METHODS)
def test_a_block_of_each_method(method, how):
    assert_checkpoint_changes_nothing(lambda: (conv_block(method),), S_TNC, how, steps=2)


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("norm", ["tebn", "tab", "mpbn"])
def test_a_block_with_each_norm(norm, how):
    assert_checkpoint_changes_nothing(lambda: (conv_block(norm=norm, num_steps=3),), S_TNC, how, steps=2)


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("method", ["asgl", "ds-atgo", "mpr"])
def test_a_neuron_alone(method, how):
    def make():
        torch.manual_seed(0)
        found = get_method(method)
        return nn.Linear(5, 6), found.neuron(width=found.width())

    assert_checkpoint_changes_nothing(make, noise(3, 8, 5), how, steps=2)


@pytest.mark.parametrize("how", CALLS)
def test_mp_init_is_refused(how):
    """Its start moves with every training pass, so a second pass would start elsewhere."""
    block = conv_block("mp-init-trsg")
    x = S_TNC.clone().requires_grad_()
    with pytest.raises(InputError, match="Use it without recompute and without torch.utils.checkpoint"):
        CALLS[how](block, x).sum().backward()


def test_evaluation_of_mp_init_may_be_recomputed():
    block = conv_block("mp-init-trsg").eval()
    x = S_TNC.clone().requires_grad_()
    (want,) = torch.autograd.grad(block(x).sum(), x)
    (got,) = torch.autograd.grad(recompute([block], x, 3).sum(), x)
    assert torch.equal(got, want)
