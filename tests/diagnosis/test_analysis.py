"""Operations, energy and monitors against the paper's counts and against a slow computation from the definitions."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.diagnosis import Activity, Monitor, count_operations, energy, measure_activity
from mpd_agl.diagnosis.histogram import BINS, count
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock, TdBatchNorm, over_time
from mpd_agl.ops import StepInput


def small(name="cnn8", **options):
    torch.manual_seed(0)
    return create_model(name, **({"width_mult": 1 / 16, "image_size": 16, "num_classes": 5, "num_steps": 3} | options))


def test_resnet19_energy_is_the_papers():
    net = create_model("resnet19", num_steps=2)
    layers = count_operations(net)
    hidden = sum(o.macs for o in layers if o.kind == "hidden")
    rate = 579.33e6 / (2 * hidden)  # the mean input rate that the paper's own count of additions means
    report = energy(net, {o.name: Activity(rate, "binary") for o in layers})
    assert report.ann_macs == 2_285_373_952
    assert report.ann_mj == pytest.approx(10.51, abs=0.005)
    paper = report.total("paper")
    assert paper["additions"] == pytest.approx(579.33e6)
    assert paper["multiplies"] == 7_083_008
    assert paper["mj"] == pytest.approx(0.55, abs=0.005)
    assert report.total("paper, stem once")["multiplies"] == 7_083_008 - 3_538_944
    for T, multiplies in ((4, 14.17e6), (6, 21.25e6)):
        net.num_steps = T
        total = energy(net, {o.name: Activity(0.1, "binary") for o in layers}).total("paper")
        assert total["multiplies"] == pytest.approx(multiplies, abs=0.005e6)


def test_strict_counts_integers_and_fractions_as_multiplies():
    net = small("resnet18", image_size=16)
    layers = count_operations(net)
    values = {"stage1.block2.conv1": "integer", "stage2.block1.conv1": "fraction"}
    report = energy(net, {o.name: Activity(0.5, values.get(o.name, "binary")) for o in layers})
    moved = sum(0.5 * 3 * o.macs for o in layers if o.name in values)
    paper, strict = report.total("paper"), report.total("strict")
    assert paper["additions"] - strict["additions"] == pytest.approx(moved)
    assert strict["multiplies"] - paper["multiplies"] == pytest.approx(moved)


def test_a_strangers_norm_and_attention_say_what_they_take():
    class PerStep(TdBatchNorm):
        multiplies_per_step = True

    class Pairs(nn.Module):
        operations = "attention"

        def forward(self, x_TNCHW):
            return x_TNCHW

        def macs_per_step(self, x_TNCHW):
            return 7 * x_TNCHW[0, 0].numel()

        def active_share(self, x_TNCHW):
            return 0.25

    net = small("resnet18")
    block = net.get_submodule("stage1.block1.conv2")
    block.norm = PerStep(block.norm.num_features)
    plain = energy(small("resnet18"), measure_activity(net, torch.randn(2, 3, 16, 16)))
    block.register_module("pairs", Pairs())
    block.register_forward_hook(lambda m, args, out: m.pairs(out))
    activity = measure_activity(net, torch.randn(2, 3, 16, 16))
    assert activity["stage1.block1.conv2.pairs"].rate == 0.25
    neurons = net.options.channels(64) * 16 * 16
    row = next(r for r in energy(net, activity).rows if r.name == "stage1.block1.conv2.pairs")
    assert (row.macs, row.additions) == (7 * neurons, 0.25 * 3 * 7 * neurons)
    rows = {r.name: r for r in energy(net, activity).rows}
    without = {r.name: r for r in plain.rows}["stage1.block1.conv2"]
    assert rows["stage1.block1.conv2"].strict_multiplies - without.strict_multiplies == 3 * neurons


def test_activity_is_what_flows_in():
    net = small("resnet18").eval()
    x = torch.randn(6, 3, 16, 16)
    seen = {}
    block = net.get_submodule("stage1.block2.conv1")
    block.synapse.register_forward_pre_hook(lambda m, i: seen.update(x=i[0]))
    activity = measure_activity(net, x, batch=6)
    assert activity["stage1.block2.conv1"].rate == pytest.approx(float((seen["x"] != 0).float().mean()))
    assert activity["stage1.block2.conv1"].values == "integer"
    assert activity["stage1.block1.conv2"].values == "binary"
    assert activity["stem"].values == "real"
    pooled = measure_activity(small("cnn8"), x)
    assert pooled["conv3"].values == "fraction"
    assert pooled["conv2"].values == "binary"
    assert not net.training
    assert measure_activity(net, x, batch=2)["stage1.block2.conv1"].rate == pytest.approx(
        activity["stage1.block2.conv1"].rate
    )


def test_looking_changes_nothing():
    net = small().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    count_operations(net)
    measure_activity(net, torch.randn(4, 3, 16, 16))
    assert net.training
    assert net.num_steps == 3
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def slowly(block, s_in, T, kappa_T):
    """Rates, availability and moments from the definitions, in float64."""
    x = over_time(block.synapse, s_in).double()
    n = block.norm
    x_T = x.expand(T, *x.shape[1:])
    i_T = core.tdbn(x_T, n.weight.double(), n.bias.double(), *core.batch_moments(x_T), v_th=n.v_th, alpha=n.alpha)
    s_T, v_T, _ = core.lif(i_T, block.neuron.tau.double(), kappa_T.double(), v_th=n.v_th)
    near = [float(((v - n.v_th).abs() < k / 2).double().mean()) for v, k in zip(v_T, kappa_T, strict=True)]
    return {
        "rate_T": [float(s.mean()) for s in s_T],
        "available_T": near,
        "mean_T": [float(v.mean()) for v in v_T],
        "var_T": [float(v.var(correction=0)) for v in v_T],
        "input_mean": float(i_T.mean()),
        "input_var": float(i_T.var(correction=0)),
        "rate_in": float((s_in != 0).double().mean()),
    }


@pytest.mark.parametrize("backend", ["eager", "auto"])
@torch.no_grad()
def test_monitor_against_the_definitions(backend):
    net = small("resnet18", backend=backend)
    for m in net.modules():
        if isinstance(m, SpikingBlock):
            m.norm.weight.add_(0.3 * torch.randn_like(m.norm.weight))
            m.norm.bias.add_(0.2 * torch.randn_like(m.norm.bias))
    inputs = {}
    blocks = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
    for name, block in blocks.items():
        block.register_forward_pre_hook(lambda m, i, name=name: inputs.update({name: i[0]}))
    monitor = Monitor(net, every=2)
    x = torch.randn(6, 3, 16, 16)
    net(x)
    first = monitor.step()
    net(x)
    assert monitor.step() is None
    assert [s.step for s in monitor.history] == [0]
    assert list(first.layers) == list(blocks)
    for name, block in blocks.items():
        kappa_T = block.widths(StepInput(inputs[name], 3)).kappa_T
        want = slowly(block, inputs[name], 3, kappa_T)
        got = first.layers[name]
        assert got.kappa_T == pytest.approx(kappa_T.tolist())
        for field, value in want.items():
            assert getattr(got, field) == pytest.approx(value, rel=1e-3, abs=2e-4), (name, field)
        assert got.gamma_bar == pytest.approx(float(block.norm.weight.mean()), rel=1e-5)
        assert got.predicted_var_T[0] == pytest.approx((abs(got.gamma_bar) * 0.5) ** 2, rel=1e-5)
        # the input's own mixture over channels: Theorem 1 with exact moments is an identity on the batch
        assert got.exact_var_T[0] == pytest.approx(got.input_var, rel=2e-3)
        assert got.predicted_mean_T[0] == pytest.approx(got.input_mean, abs=1e-4)


def test_monitor_sees_two_currents_and_frames_and_can_leave():
    net = small("resnet18", block="zheng", in_channels=2)
    monitor = Monitor(net, every=1)
    net(torch.rand(3, 4, 2, 16, 16)).sum().backward()
    shot = monitor.step()
    layer = shot.layers["stage1.block1.conv2"]
    assert layer.kappa_T[0] == pytest.approx(1.0, rel=1e-5)
    assert layer.input_var == pytest.approx(0.25, rel=0.35)  # two correlated currents of 1/8 each
    monitor.close()
    net(torch.rand(3, 4, 2, 16, 16))
    assert monitor.step() is None
    assert not shot.to_dict()["layers"]["stem"].keys() ^ set(vars(layer))


def test_monitor_in_a_training_step_changes_no_number():
    losses = []
    for watch in (False, True):
        net = small()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        monitor = Monitor(net, every=1) if watch else None
        g = torch.Generator().manual_seed(1)
        for _ in range(5):
            x, y = torch.randn(8, 3, 16, 16, generator=g), torch.arange(8) % 5
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x).mean(0), y)
            loss.backward()
            optimizer.step()
            if monitor:
                monitor.step()
        losses.append(float(loss.detach()))
    assert losses[0] == losses[1]


def test_bad_input():
    with pytest.raises(InputError, match="every must be at least 1, got 0"):
        Monitor(small(), every=0)
    with pytest.raises(InputError, match="no spiking neuron that can be watched"):
        Monitor(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"no activity for \d+ layers \(first conv2\)"):
        energy(small(), {})


@pytest.mark.parametrize("block", ["sew", "zheng"])
@pytest.mark.parametrize("most", [2**17, 3 * 4 * 16 * 16])
@torch.no_grad()
def test_detail_against_the_definitions(monkeypatch, block, most):
    monkeypatch.setattr("mpd_agl.diagnosis.histogram.MOST_VALUES", most)
    net = small("resnet18", block=block)
    for m in net.modules():
        if isinstance(m, TdBatchNorm):
            m.weight.mul_(3 * torch.rand_like(m.weight))
            m.bias.add_(torch.randn_like(m.bias))
    seen, inputs = {}, {}
    for name in ("stem", "stage1.block1.conv2"):
        got = net.get_submodule(name)
        got.register_forward_pre_hook(lambda m, i, name=name: inputs.update({name: i[0]}))
        got.neuron.register_forward_pre_hook(lambda m, i, name=name: seen.update({name: i[0]}))
    monitor = Monitor(net, every=1, detail=True)
    net(torch.randn(6, 3, 16, 16))
    shot = monitor.step()
    for name, s_in in inputs.items():
        layer, detail = net.get_submodule(name), shot.layers[name].detail
        i_T = seen[name].double().expand(3, *seen[name].shape[1:])
        if block == "sew" or name == "stem":  # one current: the norm's output
            x = over_time(layer.synapse, s_in).double()
            x_T = x.expand(3, *x.shape[1:])
            n = layer.norm
            want_T = core.tdbn(x_T, n.weight.double(), n.bias.double(), *core.batch_moments(x_T), v_th=n.v_th)
            torch.testing.assert_close(i_T, want_T, rtol=1e-4, atol=1e-4)
        v_T = core.lif(i_T, layer.neuron.tau.double(), torch.ones(3))[1]
        samples = detail.potential.samples
        assert samples == min(6, max(1, most // i_T[0, 0].numel()))
        edges = [-torch.inf, *torch.linspace(-2, 3, 65).tolist(), torch.inf]
        for v, got_B in zip(v_T, detail.potential.count_TB, strict=True):
            v = v[:, :samples] if v.dim() > 4 else v[:samples]
            want_B = [int(((v >= a) & (v < b)).sum()) for a, b in pairwise(edges)]
            assert sum(got_B) == v.numel()
            moved = sum(abs(a - b) for a, b in zip(got_B, want_B, strict=True))
            assert moved <= 2e-3 * v.numel() + 2  # float32 against float64, at the bins' edges
            assert want_B[0] + want_B[-1] > 0
        if block == "sew" or name == "stem":
            assert detail.gamma_C == pytest.approx(layer.norm.weight.tolist(), rel=1e-4)
            assert detail.beta_C == pytest.approx(layer.norm.bias.tolist(), rel=1e-4)
        assert sum(detail.gamma_C) / len(detail.gamma_C) == pytest.approx(shot.layers[name].gamma_bar, abs=1e-4)


def test_a_histogram_leaves_nan_out_and_keeps_infinities() -> None:
    inf, nan = float("inf"), float("nan")
    count_B = count(torch.tensor([nan, 0.51, inf, -inf, nan]), 0.5).tolist()
    assert {b: n for b, n in enumerate(count_B) if n} == {0: 1, 33: 1, BINS + 1: 1}
