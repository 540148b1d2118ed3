"""tdBN against torch's own batch norm, and its gradient against finite differences."""

import pytest
import torch

from mpd_agl.core import batch_moments, tdbn, update_running
from mpd_agl.errors import InputError


@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 7, 5, 3, 4)])
def test_it_is_batch_norm_with_the_threshold_in_the_scale(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64) * 3 + 2
    gamma_C, beta_C = torch.rand(5, dtype=torch.float64) + 0.5, torch.randn(5, dtype=torch.float64)
    i = tdbn(x, gamma_C, beta_C, *batch_moments(x), v_th=0.7, alpha=0.6, eps=1e-5)
    mean_C, var_C = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    want = torch.nn.functional.batch_norm(
        x.flatten(0, 1), mean_C, var_C, gamma_C * 0.7 * 0.6, beta_C, training=True, momentum=0.1, eps=1e-5
    ).view(shape)
    torch.testing.assert_close(i, want, rtol=1e-12, atol=1e-12)
    zero, one = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    new_mean, new_var = update_running(zero, one, *batch_moments(x), x.numel() // 5, 0.1)
    torch.testing.assert_close(new_mean, mean_C, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(new_var, var_C, rtol=1e-12, atol=1e-12)


def test_gradient_against_finite_differences():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    gamma_C = torch.tensor([0.8, 1.3], dtype=torch.float64, requires_grad=True)
    beta_C = torch.tensor([0.1, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, g, b: tdbn(x, g, b, *batch_moments(x)), (x, gamma_C, beta_C))


def test_one_value_is_no_statistic():
    with pytest.raises(InputError, match="at least 2 values per channel, got 1"):
        update_running(torch.zeros(1), torch.ones(1), torch.zeros(1), torch.zeros(1), 1, 0.1)
