"""ASGL's noisy spike (Wang et al. 2023), by hand."""

import pytest
import torch

from mpd_agl.rivals.asgl import noisy_spike


def test_it_mixes_hard_and_soft_spikes_and_has_the_soft_gradient():
    u = torch.tensor([-0.3, 0.1, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    slope = torch.tensor(1.25, dtype=torch.float64, requires_grad=True)
    out = noisy_spike(u, 1 / slope, torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert out.tolist() == pytest.approx([0.0, 1.0, 0.75, 1.0])
    out.sum().backward()
    assert u.grad.tolist() == pytest.approx([1.25, 1.25, 1.25, 0.0])
    assert float(slope.grad) == pytest.approx(-0.3 + 0.1 + 0.2)  # d clamp(a u + 1/2)/da = u inside
