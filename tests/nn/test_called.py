"""What makes a module more than its class's `forward` on its parameters."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm

from mpd_agl.nn.called import called_as_module


def other_forward(module):
    module.forward = lambda x: x


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


ASKED = {
    "forward hook": lambda m: m.register_forward_hook(lambda *a: None),
    "forward pre-hook": lambda m: m.register_forward_pre_hook(lambda *a: None),
    "backward hook": lambda m: m.register_full_backward_hook(lambda *a: None),
    "backward pre-hook": lambda m: m.register_full_backward_pre_hook(lambda *a: None),
    "own forward": other_forward,
    "parametrisation": lambda m: parametrize.register_parametrization(m, "weight", Twice()),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old spectral_norm": spectral_norm,
    "pruning": lambda m: prune.random_unstructured(m, "weight", 0.5),
}
OF_ALL_MODULES = {
    "forward hook": lambda: torch_module.register_module_forward_hook(lambda *a: None),
    "forward pre-hook": lambda: torch_module.register_module_forward_pre_hook(lambda *a: None),
    "backward hook": lambda: torch_module.register_module_full_backward_hook(lambda *a: None),
    "backward pre-hook": lambda: torch_module.register_module_full_backward_pre_hook(lambda *a: None),
}


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(3, 4, 3), lambda: nn.Linear(3, 4), lambda: nn.BatchNorm2d(3)])
@pytest.mark.parametrize("what", ASKED)
def test_a_module_with_more_than_its_forward_is_called(make, what):
    module = make()
    assert not called_as_module(module)
    ASKED[what](module)
    assert called_as_module(module)


@pytest.mark.parametrize("what", OF_ALL_MODULES)
def test_hooks_of_all_modules_count(what):
    module = nn.Linear(3, 4)
    handle = OF_ALL_MODULES[what]()
    try:
        assert called_as_module(module)
    finally:
        handle.remove()
    assert not called_as_module(module)


def test_a_hook_that_was_removed_and_one_on_a_child_do_not_count():
    net = nn.Sequential(nn.Linear(3, 4))
    net[0].register_forward_hook(lambda *a: None)
    net.register_forward_hook(lambda *a: None).remove()
    assert not called_as_module(net)
    assert called_as_module(net[0])
    assert torch.is_tensor(net(torch.zeros(1, 3)))
