"""Monitors and energy counts on rivals' networks: they count what the gates, products and neurons of each did."""

import pytest
import torch
from torch import nn

from mpd_agl.adaptation import adapt
from mpd_agl.diagnosis import Monitor, count_operations, energy, measure_activity
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from tests.rivals.test_networks import small, trained


def test_a_monitor_measures_the_sum_of_currents_of_a_membrane_shortcut():
    net = small("ms-resnet18", norm="bn")
    with torch.no_grad():
        net.stem.norm.weight.fill_(0.6)
        net.stage1.block1.conv2.norm.weight.fill_(0.8)
    x = torch.randn(16, 3, 8, 8)
    monitor = Monitor(net, every=1)
    net(x).sum().backward()
    seen = monitor.step().layers["stage1.block2.spike"]
    assert seen.predicted_var_T[0] == pytest.approx(1.0, rel=1e-5)
    assert seen.var_T[0] == pytest.approx(1.0, rel=0.15)  # measured: the two currents are nearly independent
    assert seen.rate_in is None


def test_energy_tells_gates_scales_and_products():
    x = torch.randn(8, 3, 8, 8)
    plain, gated = (
        trained(small("cnn8", attention=a, image_size=16), torch.randn(8, 3, 16, 16)) for a in ("none", "tcja")
    )
    x16 = torch.randn(8, 3, 16, 16)
    kinds = {o.name: o.kind for o in count_operations(gated)}
    assert kinds["gate10"] == "gate"
    report = energy(gated, measure_activity(gated, x16))
    rows = {r.name: r for r in report.rows}
    assert rows["gate10"].multiplies == 2 * count_operations(gated)[[*kinds].index("gate10")].macs
    assert measure_activity(gated, x16)["conv7"].values == "fraction"  # spikes times gates, averaged
    assert {r.name for r in energy(plain, measure_activity(plain, x16)).rows} == set(kinds) - {"gate8", "gate10"}

    scaled = trained(small("cnn8", norm="tebn"), x)
    rows = {r.name: r for r in energy(scaled, measure_activity(scaled, x)).rows}
    assert rows["conv2"].strict_multiplies == 2 * 4 * 8 * 8  # T neurons, over additions of spikes
    assert rows["conv2"].strict_additions == rows["conv2"].additions

    ms = trained(small("ms-resnet18"), x)
    rows = {r.name: r for r in energy(ms, measure_activity(ms, x)).rows}
    assert rows["stage2.block1.shortcut"].values_in == "fraction"  # currents, not spikes
    assert rows["stage2.block1.shortcut"].strict_multiplies > 0
    assert rows["stage1.block1.conv1"].values_in == "binary"

    attends = trained(small("statten", image_size=16), torch.randn(8, 3, 16, 16))
    activity = measure_activity(attends, x16)
    row = {r.name: r for r in energy(attends, activity).rows}["blocks.0.attention"]
    assert (row.values_in, row.macs) == ("binary", 2 * 32 * 4 * 4 * (32 // 8))
    assert row.strict_additions == pytest.approx(activity["blocks.0.attention"].rate * 2 * row.macs)
    assert row.strict_multiplies == 0


def test_statten_counts_by_hand():
    layers = {o.name: o.macs for o in count_operations(create_model("statten", num_steps=4, depth=3))}
    size = 8 * 8
    want = {
        "conv1": 3 * 64 * 9 * 1024, "conv2": 64 * 128 * 9 * 1024, "conv3": 128 * 256 * 9 * 1024,
        "conv4": 256 * 512 * 9 * 256, "position": 512 * 512 * 9 * size, "blocks.2.q": 512 * 512 * size,
        "blocks.2.attention": 2 * size * 512 * 64, "blocks.2.fc1": 512 * 2048 * size, "readout": 512 * 10,
    }  # fmt: skip
    assert {n: layers[n] for n in want} == want
    assert sum(n.endswith("attention") for n in layers) == 3


@pytest.mark.parametrize("method", ["ds-atgo", "trsg", "mpr", "diet"])
def test_a_monitor_counts_what_the_neuron_did(method):
    torch.manual_seed(0)
    net = create_model("cnn8", width_mult=0.125, image_size=16, method=method)
    counted = []
    net.conv2.register_forward_hook(lambda m, i, o: counted.append((o.detach() != 0).float()))
    monitor = Monitor(net, every=1, detail=True)
    net(torch.randn(4, 3, 16, 16)).sum().backward()
    seen = monitor.step().layers["conv2"]
    assert seen.rate_T == pytest.approx(counted[0].flatten(1).mean(1).tolist())
    assert seen.detail.fired_C == counted[0].sum((0, 1, 3, 4)).int().tolist()
    assert len(seen.kappa_T) == 2
    neuron = net.conv2.neuron
    if method == "ds-atgo":
        assert seen.v_th == pytest.approx(float((neuron.theta[:2] - 0.45).mean() * 10), rel=1e-4)
    else:
        assert seen.kappa_T == pytest.approx(
            [1.0, 1.0] if method == "mpr" else [float(torch.as_tensor(neuron.v_th).detach())] * 2, rel=1e-6
        )


@pytest.mark.parametrize("method", ["ds-atgo", "trsg", "mpr", "diet", "asgl"])
def test_a_method_that_is_a_neuron_is_refused_by_adapt(method):
    with pytest.raises(InputError, match="and adapt keeps yours"):
        adapt(nn.Linear(2, 2), torch.zeros(1, 2), method=method)
