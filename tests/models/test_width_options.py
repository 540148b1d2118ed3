"""The options kappa, leak and gamma_start reach every layer of a network, from the configuration too."""

import math

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock
from mpd_agl.train.resolve import resolve


def blocks(**options):
    net = create_model("resnet19", width_mult=0.0625, image_size=8, **options)
    return [m for m in net.modules() if isinstance(m, SpikingBlock)]


@pytest.mark.parametrize(
    ("method", "kappa"), [("stbp-tdbn", 0.25), ("trainable-decay", 4.0), ("psg", 2.0), ("asgl", 4)]
)
def test_a_width_that_is_kept_or_learnt_starts_where_asked(method, kappa):
    for block in blocks(method=method, kappa=kappa):
        assert block.kappa(3).tolist() == [kappa] * 3


def test_a_rule_that_computes_its_width_refuses_one():
    with pytest.raises(InputError, match=r"MPDWidth computes its width and takes none, got kappa=2"):
        blocks(method="mpd-agl", kappa=2.0)
    with pytest.raises(InputError, match=r"model.kappa: method 'lsg': LSGWidth computes its width and takes none"):
        resolve({"method": "lsg", "model": {"kappa": 2.0}})
    assert resolve({"method": "psg", "model": {"kappa": 2.0}}).model.kappa == 2


@pytest.mark.parametrize("block", ["sew", "zheng"])
def test_gamma_starts_where_asked_and_the_width_follows(block):
    for layer in blocks(gamma_start=3.0, block=block):
        assert set(layer.norm.weight.tolist()) == {3.0}
        assert all(set(c.norm.weight.tolist()) == {3.0} for c in layer.currents)
        assert float(layer.kappa(1)) == pytest.approx(2 * 0.5 * 3.0 if not layer.currents else 3.0, rel=1e-6)


def test_the_whole_leak_sum_reaches_the_width():
    tau, T = 0.9, 10
    two, full = (blocks(method="agr", tau=tau, leak=leak)[0].kappa(T) for leak in ("two", "full"))
    # sigma = v_th = 0.5, so kappa = 2 sigma_t is the root of the leak sum.
    want = [math.sqrt(sum(tau ** (2 * k) for k in range(t))) for t in range(1, T + 1)]
    torch.testing.assert_close(full, torch.tensor(want))
    torch.testing.assert_close(two[1:], torch.full((T - 1,), math.sqrt(1 + tau * tau)))


def test_behind_a_state_the_whole_leak_sum_has_its_limit():
    tau = 0.9
    block = blocks(method="agr", tau=tau, leak="full")[0]
    state = torch.zeros(1)
    torch.testing.assert_close(block.kappa(3, state=state), torch.full((3,), 1 / math.sqrt(1 - tau * tau)))


@pytest.mark.parametrize(
    ("method", "option", "words"),
    [
        ("stbp-tdbn", {"leak": "full"}, "FixedWidth reads no moments of the potential, got leak='full'. Leave it out."),
        (
            "slope-schedule",
            {"kappa": 0.5},
            r"ScheduledWidth computes its width and takes none, got kappa=0.5. Leave kappa out.",
        ),
    ],
)
def test_options_without_effect_are_refused(method, option, words):
    with pytest.raises(InputError, match=words):
        blocks(method=method, **option)
    with pytest.raises(InputError, match=words):
        resolve({"method": method, "model": option})
