"""Objectives and attacks against their formulas, computed a second time with plain loops and autograd."""

import math

import pytest
import torch

from mpd_agl.train.attacks import Pixels, build_attack, pgd
from mpd_agl.train.losses import distillation
from mpd_agl.train.objective import Distill
from tests.refused import refused
from tests.train.chain import X, Y, ce, chain


def test_distillation_is_hintons_formula():
    o, wanted = torch.tensor([[1.0, -1.0], [0.2, 0.3]]), torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
    total = 0.0
    for a, b in zip(o.tolist(), wanted.tolist(), strict=True):
        p = [math.exp(v / 3) / sum(math.exp(w / 3) for w in a) for v in a]
        q = [math.exp(v / 3) / sum(math.exp(w / 3) for w in b) for v in b]
        total += sum(qk * math.log(qk / pk) for pk, qk in zip(p, q, strict=True))
    assert float(distillation(o, wanted)) == pytest.approx(9 * total / 2, rel=1e-5)
    student, teacher = chain(0), chain(1)
    output, loss = Distill(ce, teacher, share=0.3, temperature=3.0)(student, X, Y)
    soft = distillation(output.float().mean(0), teacher(X).float().mean(0))
    assert float(loss.detach()) == pytest.approx(float((0.7 * ce(output, Y) + 0.3 * soft).detach()), rel=1e-6)
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert list(Distill(ce, teacher, share=0.3, temperature=3.0).state_dict()) == []


def test_fgsm_and_pgd_stay_inside_and_do_harm():
    net, pixels = chain(3), Pixels((0.5,) * 3, (0.25,) * 3)
    x = (X - 0.5) / 0.25
    at = x.clone().requires_grad_()
    ce(net(at), Y).backward()
    want = (X + 0.05 * at.grad.sign()).clamp(0, 1)
    torch.testing.assert_close(
        build_attack("fgsm", pixels, eps=0.05)(net, x, Y) * 0.25 + 0.5, want, rtol=1e-12, atol=1e-12
    )
    found = pgd(net.train(), x, Y, pixels, eps=0.05, steps=7) * 0.25 + 0.5
    assert float((found - X).abs().max()) <= 0.05 + 1e-12
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    with torch.no_grad():
        assert float(ce(net((found - 0.5) / 0.25), Y)) > float(ce(net(x), Y))
    assert net.training
    with refused("bad-attack", 0.0):
        build_attack("pgd", pixels, eps=0.0)
    with refused("unknown-name", "cw"):
        build_attack("cw", pixels, eps=0.1)
    with refused("bad-attack", 1):
        build_attack("pgd", pixels, eps=0.1, steps=1)
