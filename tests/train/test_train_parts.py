"""Losses, optimizers, averages, steps and evaluation against values worked out by hand or by plain torch."""

import copy
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.models import create_model
from mpd_agl.train.config import OptimConfig
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.losses import correct, cross_entropy, mean_output, tet
from mpd_agl.train.objective import Objective, build_objective
from mpd_agl.train.optim import build_optimizer, learning_rate, pack_optimizer, unpack_optimizer
from mpd_agl.train.resolve import resolve
from mpd_agl.train.rng import restore_rng, rng_state, seed_all
from mpd_agl.train.step import Ema, NotFinite, Stepper
from tests.refused import refused

CPU = torch.device("cpu")


class Small(nn.Module):
    """(N, 1, 2, 2) images to o_TNK with T = 2, no batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.relu(self.conv(x).flatten(1)))
        return torch.stack([out, 2 * out])


def batch(n: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(n, 1, 2, 2), torch.randint(0, 4, (n,))


def stepper(net: nn.Module, **options: object) -> Stepper:
    optimizer = build_optimizer(net, OptimConfig(lr=0.1))
    return Stepper(net, optimizer, Objective(), device=CPU, **options)  # type: ignore[arg-type]


def test_cross_entropy_is_of_the_mean_output() -> None:
    o = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])
    assert cross_entropy(o, torch.tensor([0])).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert cross_entropy(o, torch.tensor([1]), label_smoothing=0.5).item() == pytest.approx(
        0.75 * math.log(1 + math.exp(2)) + 0.25 * math.log(1 + math.exp(-2)), rel=1e-6
    )


def test_tet_by_hand() -> None:
    o, y = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]]), torch.tensor([0])
    each = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-3))) / 2
    mse = (0 + 1 + 4 + 1) / 4
    assert tet(o, y, 0.25).item() == pytest.approx(0.75 * each + 0.25 * mse, rel=1e-6)
    config = resolve({"loss": {"name": "tet", "tet_lambda": 0.25}})
    found = build_objective(config, nn.Identity(), None, CPU).loss(o, y)  # type: ignore[arg-type]
    assert found.item() == pytest.approx(0.75 * each + 0.25 * mse)
    many, labels = torch.randn(3, 5, 4), torch.tensor([0, 1, 2, 3, 1])
    expected = sum(F.cross_entropy(many[t], labels) for t in range(3)) / 3
    torch.testing.assert_close(tet(many, labels, 0.0), expected)


def test_correct_counts_the_mean_outputs_argmax() -> None:
    o = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, 1.0]]])
    assert correct(o, torch.tensor([1, 1])) == 2
    assert correct(o, torch.tensor([0, 1])) == 1


def test_the_rate_is_torchs_cosine_per_epoch() -> None:
    config = OptimConfig(lr=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=150)
    for epoch in range(150):
        assert learning_rate(config, epoch, 150) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()
    assert [learning_rate(OptimConfig(lr=0.3, warmup_epochs=2), e, 4) for e in range(3)] == pytest.approx(
        [0.1, 0.2, 0.3]
    )
    assert learning_rate(OptimConfig(lr=0.3, schedule="constant"), 9, 10) == 0.3


def test_cosine_by_steps_meets_cosine_by_epochs_at_their_starts() -> None:
    by_epoch, by_steps = (OptimConfig(lr=0.05, schedule=s) for s in ("cosine", "cosine-steps"))
    for epoch in range(4):
        assert learning_rate(by_steps, epoch, 4) == learning_rate(by_epoch, epoch, 4)
        assert learning_rate(by_epoch, epoch, 4, 0.9) == learning_rate(by_epoch, epoch, 4)
    assert learning_rate(by_steps, 3, 4, 1 - 1 / 80) == pytest.approx(0.05 * 2.40955e-5, rel=1e-5)


def test_warm_up_rises_within_an_epoch_only_by_steps() -> None:
    by_steps = OptimConfig(lr=0.1, schedule="cosine-steps", warmup_epochs=1)
    assert [learning_rate(by_steps, 0, 4, done) for done in (0.0, 0.5)] == pytest.approx([0.05, 0.075])
    assert learning_rate(by_steps, 1, 4) == pytest.approx(0.1)


def test_weight_decay_on_all_or_on_weights() -> None:
    net = Small()
    assert len(build_optimizer(net, OptimConfig()).param_groups) == 1
    weights, others = build_optimizer(net, OptimConfig(decay_on="weights", name="adamw")).param_groups
    assert [p.dim() for p in weights["params"]] == [4, 2]
    assert [p.dim() for p in others["params"]] == [1, 1]
    assert (weights["weight_decay"], others["weight_decay"]) == (1e-4, 0.0)
    tab = create_model("cnn8", width_mult=0.125, image_size=16, norm="tab")  # its gamma and beta are (T, C)
    weights, others = build_optimizer(tab, OptimConfig(decay_on="weights")).param_groups
    assert {id(p) for n, p in tab.named_parameters() if ".norm." in n} <= {id(p) for p in others["params"]}
    assert len(weights["params"]) + len(others["params"]) == len(list(tab.parameters()))


def test_a_step_is_plain_torchs() -> None:
    net, (x, y) = Small(), batch()
    other = copy.deepcopy(net)
    result = stepper(net)(x, y)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss = F.cross_entropy(other(x).mean(0), y)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in other.parameters() if p.grad is not None))
    optimizer.step()
    assert result.loss == pytest.approx(loss.item())
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    assert result.count == 8
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("n", [8, 7])
def test_parts_sum_up_to_the_whole_batch(n: int) -> None:
    net, (x, y) = Small(), batch(n)
    other = copy.deepcopy(net)
    whole, parts = stepper(net)(x, y), stepper(other, accumulate=3)(x, y)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.correct == whole.correct
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_frames_are_cut_along_the_batch() -> None:
    class Frames(nn.Module):
        sizes: list[tuple[int, ...]] = []  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.sizes.append(tuple(x.shape))
            out: Tensor = self.fc(x.flatten(2))
            return out

    net = Frames()
    stepper(net, accumulate=2)(torch.randn(3, 8, 1, 2, 2), torch.randint(0, 4, (8,)))
    assert net.sizes == [(3, 4, 1, 2, 2)] * 2


def test_clipping_scales_the_whole_gradient() -> None:
    net, (x, y) = Small(), batch()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    result = Stepper(net, optimizer, Objective(), device=CPU, clip_norm=0.01)(x, y)
    assert result.grad_norm > 0.01
    moved = math.sqrt(
        sum(float((p.detach() - b).square().sum()) for p, b in zip(net.parameters(), before, strict=True))
    )
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_the_average_follows_its_formula() -> None:
    net = nn.BatchNorm1d(2)
    ema = Ema(net, 0.75)
    with torch.no_grad():
        net.weight += 4
        net.num_batches_tracked += 3
    ema.update(net)
    assert ema.net.weight.tolist() == [2.0, 2.0]
    assert ema.net.num_batches_tracked.item() == 3
    assert not ema.net.training


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimizer_continues_from_its_packed_state(name: str) -> None:
    net, (x, y) = Small(), batch()
    net.conv.weight.data = net.conv.weight.data.contiguous(memory_format=torch.channels_last)
    config = OptimConfig(name=name, lr=0.01)  # type: ignore[arg-type]
    first = Stepper(net, build_optimizer(net, config), Objective(), device=CPU)
    for _ in range(3):
        first(x, y)
    other = copy.deepcopy(net)
    second = Stepper(other, build_optimizer(other, config), Objective(), device=CPU)
    packed = {
        k: v.clone(memory_format=torch.contiguous_format)
        for k, v in pack_optimizer(first.optimizer, net, Objective()).items()
    }
    unpack_optimizer(second.optimizer, other, packed, Objective())
    for _ in range(3):
        first(x, y)
        second(x, y)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def test_generators_continue_from_json() -> None:
    import json
    import random

    def draw() -> list[float]:
        return [torch.rand(1).item(), random.gauss(0, 1), float(np.random.standard_normal())]  # noqa: NPY002

    seed_all(3)
    draw()
    state = json.loads(json.dumps(rng_state()))
    expected = [draw() for _ in range(3)]
    restore_rng(state)
    assert [draw() for _ in range(3)] == expected


class Three:
    """Three batches of fixed predictions."""

    def __len__(self) -> int:
        return 3

    def epoch(self, epoch: int, start_step: int = 0) -> AbstractContextManager[Iterator[tuple[Tensor, Tensor]]]:
        x = torch.eye(3)
        return nullcontext(
            iter([(x, torch.tensor([0, 1, 1])), (x, torch.tensor([0, 0, 2])), (x[:1], torch.tensor([2]))])
        )


def test_evaluation_counts_and_puts_modes_back() -> None:
    net = nn.Sequential(nn.Flatten(1), nn.Dropout(0.5))
    net[1].eval()

    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            assert not self.net[1].training
            return 4 * torch.stack([self.net(x)])

    timed = Timed()
    got = evaluate(timed, Three(), CPU)
    assert got.confusion_KK.tolist() == [[2, 1, 0], [0, 1, 1], [1, 0, 1]]
    assert (got.count, got.accuracy) == (7, 4 / 7)
    assert got.per_class_K == [2 / 3, 1 / 2, 1 / 2]
    right, wrong = math.log(1 + 2 * math.exp(-4)), math.log(1 + 2 * math.exp(-4)) + 4
    assert got.loss == pytest.approx((4 * right + 3 * wrong) / 7, rel=1e-5)
    assert timed.training
    assert not net[1].training


@pytest.mark.parametrize("where", ["input", "parameter", "layer", "loss", "gradient"])
def test_a_nan_stops_before_the_weights_change_and_is_located(where: str) -> None:
    net, (x, y) = Small(), batch()
    loss = cross_entropy
    expected = {
        "input": "the input holds NaN or Inf",
        "parameter": "parameter conv.bias",
        "layer": "first in layer conv",
        "loss": "first in the loss itself",
        "gradient": "first in the gradient of fc.bias",
    }[where]
    if where == "input":
        x[3] = math.nan
    if where == "parameter":
        net.conv.bias.data[0] = math.nan
    if where == "layer":
        net.conv.weight.data.fill_(1e38)
        net.conv.bias.data.fill_(1e38)
        x = x.abs() * 1e3
    if where == "loss":
        loss = lambda o, y: cross_entropy(o, y) * math.nan  # noqa: E731
    if where == "gradient":
        loss = lambda o, y: cross_entropy(o, y) + ((o - o.detach()) * math.inf).nan_to_num().sum()  # noqa: E731
    before = copy.deepcopy(net.state_dict())
    step = Stepper(net, build_optimizer(net, OptimConfig()), Objective(loss), device=CPU)  # type: ignore[arg-type]
    with pytest.raises(NotFinite, match=expected):
        step(x, y)
    assert all(torch.equal(v.nan_to_num(7), before[k].nan_to_num(7)) for k, v in net.state_dict().items())


DEVICE_PATH = {"sgd": 0.1, "adam": 0.01, "adamw": 0.01}


def on_a_device(net: nn.Module, name: str, **options: object) -> Stepper:
    """A stepper as on a GPU: the optimizer takes its flag as a tensor, and results are read after several steps."""
    optimizer = build_optimizer(net, OptimConfig(name=name, lr=DEVICE_PATH[name]), fused=True)  # type: ignore[arg-type]
    return Stepper(net, optimizer, Objective(), device=CPU, read_every=20, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEVICE_PATH)
def test_results_can_be_read_after_several_steps(name: str) -> None:
    net, (x, y) = Small(), batch(7)
    other = copy.deepcopy(net)
    late = on_a_device(net, name, accumulate=2, clip_norm=1.0)
    optimizer = build_optimizer(other, OptimConfig(name=name, lr=DEVICE_PATH[name]))  # type: ignore[arg-type]
    plain = Stepper(other, optimizer, Objective(), device=CPU, accumulate=2, clip_norm=1.0)
    wanted = []
    for _ in range(5):
        late.step(x, y)
        wanted.append(plain(x, y))
    assert late.unread == 5
    got = late.read()
    assert late.unread == 0
    assert late.read() == []
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine.count, mine.correct) == (theirs.count, theirs.correct)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["input", "loss", "gradient"])
@pytest.mark.parametrize("name", DEVICE_PATH)
def test_a_bad_step_and_those_after_it_leave_the_weights_alone_on_a_device(name: str, where: str) -> None:
    net, (x, y) = Small(), batch()
    stepper = on_a_device(net, name)
    stepper.step(x, y)
    stepper.step(x, y)
    before = [p.detach().clone() for p in net.parameters()]
    momenta = {k: v.clone() for k, v in pack_optimizer(stepper.optimizer, net, Objective()).items()}
    loss = stepper.objective.loss
    if where == "input":
        stepper.step(torch.full_like(x, math.nan), y)
    elif where == "loss":
        stepper.objective.loss = lambda o, y: loss(o, y) * math.inf
        stepper.step(x, y)
    else:
        stepper.objective.loss = lambda o, y: loss(o, y) + ((o - o.detach()) * math.inf).nan_to_num().sum()
        stepper.step(x, y)
    stepper.objective.loss = loss
    stepper.step(x, y)
    stepper.step(x, y)
    for p, b in zip(net.parameters(), before, strict=True):
        assert torch.equal(p, b)
    for key, value in pack_optimizer(stepper.optimizer, net, Objective()).items():
        assert torch.equal(value, momenta[key]), key
    text = {"input": "the input holds NaN or Inf", "loss": "loss inf", "gradient": "gradient norm (inf|nan)"}[where]
    with pytest.raises(NotFinite, match=text) as error:
        stepper.read()
    assert error.value.ago == 2


def test_a_step_waits_for_no_device() -> None:
    """On `meta` tensors there are no values: whatever asks for one raises."""
    net = Small().to("meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.defaults["fused"] = True
    optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    stepper = Stepper(net, optimizer, Objective(), device=torch.device("meta"), accumulate=2, clip_norm=1.0)
    for _ in range(3):
        stepper.step(torch.empty(8, 1, 2, 2, device="meta"), torch.empty(8, dtype=torch.int64, device="meta"))
    assert stepper.unread == 3
    assert stepper.read_every == 20


def test_float16_needs_a_gpu_and_bfloat16_does_not() -> None:
    with refused("no-gpu", "float16"):
        stepper(Small(), precision="float16")
    x, y = batch()
    assert math.isfinite(stepper(Small(), precision="bfloat16")(x, y).loss)


def test_mean_output_is_float32() -> None:
    assert mean_output(torch.ones(2, 3, 4, dtype=torch.bfloat16)).dtype == torch.float32
