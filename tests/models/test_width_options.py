"""A method's option kappa reaches every layer of a network, from the configuration too."""

import pytest
from torch import nn

from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock
from mpd_agl.train.build import build_network
from mpd_agl.train.resolve import resolve
from tests.nn.parts import widths
from tests.refused import refused

SMALL = {"width_mult": 0.0625}


def blocks(**options):
    net = create_model("resnet19", image_size=8, **SMALL, **options)
    return [m for m in net.modules() if isinstance(m, SpikingBlock)]


@pytest.mark.parametrize(("method", "kappa"), [("stbp-tdbn", 0.25), ("trainable-decay", 4.0)])
def test_a_width_that_is_kept_or_learnt_starts_where_asked(method, kappa):
    config = resolve({"method": method, "model": {"kappa": kappa, **SMALL}})
    net = build_network(config, in_channels=3, image_size=8, num_classes=2)
    found = [m for m in net.modules() if isinstance(m, SpikingBlock)]
    for block in (*blocks(method=method, kappa=kappa), *found):
        assert widths(block, 3).kappa_T.tolist() == [kappa] * 3


@pytest.mark.parametrize("method", ["mpd-agl", "lsg"])
def test_a_rule_that_computes_its_width_refuses_one(method):
    with refused("option-of-others", method, "kappa=2.0"):
        blocks(method=method, kappa=2.0)
    with refused("bad-config", "model.kappa", repr(method)):
        resolve({"method": method, "model": {"kappa": 2.0}})


@pytest.mark.parametrize("block", ["sew", "zheng"])
def test_the_width_follows_gamma(block):
    for layer in blocks(block=block):
        for norm in (layer.norm, *(c.norm for c in layer.currents)):
            nn.init.constant_(norm.weight, 3.0)
        assert float(widths(layer, 1).kappa_T) == pytest.approx(3.0, rel=1e-6)
