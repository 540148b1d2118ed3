"""The option kappa reaches every layer of a network."""

import pytest
from tests.nn.parts import widths
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock


def blocks(**options):
    net = create_model("resnet19", width_mult=0.0625, image_size=8, **options)
    return [m for m in net.modules() if isinstance(m, SpikingBlock)]


@pytest.mark.parametrize(("method", "kappa"), [("stbp-tdbn", 0.25), ("trainable-decay", 4.0)])
def test_a_width_that_is_kept_starts_where_asked(method, kappa):
    for block in blocks(method=method, kappa=kappa):
        assert widths(block, 3).kappa_T.tolist() == [kappa] * 3


def test_a_rule_that_computes_its_width_refuses_one():
    with pytest.raises(InputError, match=r"method 'mpd-agl' has no option 'kappa', got kappa=2.0"):
        blocks(method="mpd-agl", kappa=2.0)


@pytest.mark.parametrize("block", ["sew", "zheng"])
def test_the_width_follows_gamma(block):
    for layer in blocks(block=block):
        for norm in (layer.norm, *(c.norm for c in layer.currents)):
            nn.init.constant_(norm.weight, 3.0)
        assert float(widths(layer, 1).kappa_T) == pytest.approx(3.0, rel=1e-6)
