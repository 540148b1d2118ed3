"""Rivals' objectives against their formulas, computed a second time with plain loops and autograd."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl.cli import main
from mpd_agl.models import create_model
from mpd_agl.rivals.objectives import LocalTandem, Robust, ShortcutHeads, local_target, rfgsm, stage_ends, tapped
from mpd_agl.rivals.widths import ScheduledWidth
from mpd_agl.train.attacks import Pixels
from mpd_agl.train.config import OptimConfig
from mpd_agl.train.losses import cross_entropy
from mpd_agl.train.optim import build_optimizer
from mpd_agl.train.resolve import resolve
from mpd_agl.train.step import Stepper
from tests.refused import refused
from tests.train.chain import X, Y, ce, chain


def test_ltl_is_local():
    student, teacher = chain(0), chain(1)
    _, loss = LocalTandem(ce, teacher, ["a", "b"], "out", weight=0.5)(student, X, Y)
    loss.backward()
    # By hand: every layer on a detached input, its own term alone.
    other, x = chain(0), X.flatten(1).unsqueeze(0)
    with torch.no_grad():
        wanted_a = teacher.a(x)
        wanted_b = teacher.b(torch.sigmoid(wanted_a))
    a = other.a(x)
    b = other.b(torch.sigmoid(a.detach()))
    o = other.out(torch.sigmoid(b.detach()))
    total = F.cross_entropy(o.mean(0), Y)
    for own, wanted in ((a, wanted_a), (b, wanted_b)):
        values = sorted(wanted.float().flatten().tolist())
        scale = values[round(0.999 * (len(values) - 1))]
        target = (wanted.float().mean(0) / scale).clamp(0, 1)
        total = total + 0.5 * (own.float().mean(0) - target).square().mean()
    total.backward()
    assert float(loss.detach()) == pytest.approx(float(total.detach()), rel=1e-6)
    for (name, p), q in zip(student.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-8, msg=name)
    assert local_target(torch.tensor([-1.0, 0.5, 2.0])).tolist() == [0.0, 0.25, 1.0]


def test_shortcut_heads_hand_their_share_to_the_output():
    net = create_model("cnn8", width_mult=0.125, image_size=16, num_classes=3)
    ends = stage_ends(net)
    assert ends == {"conv2": 8, "conv4": 16, "conv6": 32}
    objective = ShortcutHeads(cross_entropy, ends, 3, share=0.6)
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4) % 3
    objective.progress = 0.75
    output, loss = objective(net.eval(), x, y)
    with torch.no_grad(), tapped(net, list(ends)) as found:
        net(x)
    logits = [head(found[n].mean((3, 4))).mean(0) for n, head in zip(ends, objective.heads, strict=True)]
    mean = sum(float(F.cross_entropy(o.detach(), y)) for o in logits) / 3
    want = 0.85 * float(F.cross_entropy(output.detach().mean(0), y)) + 0.15 * mean
    assert float(loss.detach()) == pytest.approx(want, rel=1e-5)
    objective.progress = 1.0
    assert float(objective(net, x, y)[1].detach()) == pytest.approx(float(ce(output.detach(), y)), rel=1e-5)
    with refused("one-map-size", "plain"):
        stage_ends(create_model("plain", width_mult=0.5, image_size=8, depth=3))


def test_rfgsm_and_the_robust_loss_by_hand():
    net, pixels = chain(2), Pixels((0.4, 0.5, 0.6), (0.2, 0.25, 0.5))
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (pixels.mean, pixels.std))
    x = (X - mean) / std
    torch.manual_seed(0)
    found = rfgsm(net, x, pixels, eps=0.1, step=0.04)
    torch.manual_seed(0)
    moved = (X + 0.04 * torch.randn_like(x).sign()).clamp(0, 1)
    at = ((moved - mean) / std).requires_grad_()
    clean = F.softmax(net(x).float().mean(0), 1).detach()
    F.kl_div(F.log_softmax(net(at).float().mean(0), 1), clean, reduction="sum").backward()
    want = torch.minimum(torch.maximum(moved + 0.06 * at.grad.sign(), X - 0.1), X + 0.1).clamp(0, 1)
    torch.testing.assert_close(found * std + mean, want, rtol=1e-12, atol=1e-12)
    net.zero_grad()
    torch.manual_seed(0)
    _, loss = Robust(ce, pixels, eps=0.1, step=0.04, weight=2.0)(net, x, Y)
    p, q = F.softmax(net(found).float().mean(0), 1), F.softmax(net(x).float().mean(0), 1)
    want_loss = ce(net(x), Y) + 2 * (q * (q / p).log()).sum() / 6
    assert float(loss.detach()) == pytest.approx(float(want_loss.detach()), rel=1e-5)
    loss.backward()
    got = [w.grad.clone() for w in net.parameters()]
    net.zero_grad()
    want_loss.backward()  # both outputs pass gradients on
    for a, b in zip(got, net.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-7)


def test_a_schedule_and_an_objective_are_told_the_progress():
    net = create_model("cnn8", width_mult=0.125, image_size=16, num_classes=3, method="slope-schedule")
    objective = ShortcutHeads(cross_entropy, stage_ends(net), 3, share=0.5)
    whole = nn.ModuleList([net, objective])
    stepper = Stepper(net, build_optimizer(whole, OptimConfig()), objective, device=torch.device("cpu"))
    before = [p.detach().clone() for p in objective.parameters()]
    stepper.step(torch.randn(4, 3, 16, 16), torch.arange(4) % 3, 0.25)
    assert math.isfinite(stepper.read()[0].loss)
    assert objective.progress == 0.25
    assert {float(m.progress) for m in net.modules() if isinstance(m, ScheduledWidth)} == {0.25}
    assert all(not torch.equal(a, b) for a, b in zip(before, objective.parameters(), strict=True))


def test_a_random_part_is_no_larger_than_the_whole():
    with refused("bad-config", "robust_eps", "0.5"):
        resolve({"loss": {"name": "robust", "robust_step": 0.5}})
    with refused("bad-config", "loss.robust_eps", "robust"):
        resolve({"loss": {"robust_eps": 0.5}})


SMALL = [
    *("--data.name", "mnist5k", "--data.train_samples", "60", "--data.test_samples", "20", "--train.batch_size", "20"),
    *("--model.name", "cnn8", "--model.width_mult", "0.0625", "--train.epochs", "2", "--monitor.every", "0", "--quiet"),
]


def train(tmp_path, name, *more):
    return main(["train", *SMALL, "--runs-dir", str(tmp_path), "--name", name, *more, "--debug"])


def test_runs_with_every_objective(tmp_path, capsys):
    teacher = str(tmp_path / "ann")
    assert train(tmp_path, "ann", "--model.ann") == 0
    with refused("no-teacher", "ltl"):
        train(tmp_path, "none", "--loss.name", "ltl")
    assert train(tmp_path, "heads", "--loss.name", "shortcut-heads", "--method", "trsg") == 0
    assert train(tmp_path, "ltl", "--loss.name", "ltl", "--loss.teacher", teacher) == 0
    assert train(tmp_path, "distill", "--loss.name", "distill", "--loss.teacher", teacher, "--method", "mpr") == 0
    with refused("spiking-teacher", tmp_path / "heads"):
        train(tmp_path, "wrong", "--loss.name", "distill", "--loss.teacher", str(tmp_path / "heads"))
    start = ["--model.weights", str(tmp_path / "distill"), "--method", "mpr"]
    assert train(tmp_path, "robust", "--loss.name", "robust", *start) == 0
    capsys.readouterr()
    attacked = ["evaluate", str(tmp_path / "heads"), "--debug", "--attack"]
    assert main([*attacked, "pgd", "--eps", "4/255", "--attack-steps", "2"]) == 0
    assert "pgd of 4/255 in 2 steps" in capsys.readouterr().out  # the heads are no part of the saved network
    for more in (["--fold"], ["--attack-steps", "3"]):
        with refused("attack-options"):
            main([*attacked, "fgsm", *more])
    assert main([*attacked, "fgsm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attack"]["steps"] == 1
    for name, more, code in (
        ("gates", ["--model.attention", "tcja"], "untrained-layer"),
        ("scaled", ["--method", "trsg"], "scaled-spikes"),
        ("wide", ["--model.width_mult", "0.125"], "other-teacher"),
    ):
        with refused(code):
            train(tmp_path, name, "--loss.name", "ltl", "--loss.teacher", teacher, *more)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("loss", ["shortcut-heads", "robust"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, loss, monkeypatch):
    options = ["--loss.name", loss, "--method", "slope-schedule", "--checkpoint.every_steps", "1"]
    assert train(tmp_path, "whole", *options) == 0
    steps = []

    def step(self, x, y, progress=0.0, real=Stepper.step):
        steps.append(progress)
        if len(steps) == 5:
            raise KeyboardInterrupt
        real(self, x, y, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "step", step)
        assert train(tmp_path, "halves", *options) == 130
    assert main(["train", "--resume", str(tmp_path / "halves"), "--quiet"]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "halves")]
    assert weights[0] == weights[1]
    assert steps == pytest.approx([k / 6 for k in range(5)])
