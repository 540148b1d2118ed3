"""One timestep at a time gives the logits of the pass over all; an early answer computes no more than it needs."""

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.models.onestep import OneStep, answer_early
from mpd_agl.nn import LIF, TdBatchNorm, fold


def network(name, **options):
    """With running statistics of a batch, so that neurons fire."""
    torch.manual_seed(0)
    net = create_model(name, width_mult=0.125, image_size=16, **options).train()
    shape = (8, net.options.in_channels, 16, 16)
    x = torch.randn((net.num_steps, *shape) if name == "vggsnn" else shape)
    for norm in net.modules():
        if isinstance(norm, TdBatchNorm):
            norm.momentum = 1.0
    with torch.no_grad():
        net(x)
    return fold(net.eval()), x[..., :5, :, :, :]


CASES = [
    ("resnet19", {"num_steps": 4}),
    ("resnet19", {"num_steps": 3, "block": "zheng"}),
    ("vggsnn", {"num_steps": 5}),
    ("cnn8", {"num_steps": 4, "method": "stbp-tdbn"}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_step_by_step_is_the_whole_pass(name, options, dtype):
    net, x = network(name, backend="eager", **options)
    net, x = net.to(dtype), x.to(dtype)
    with torch.no_grad():
        whole_TNK = net(x)
    step, v, steps = OneStep(net), None, []
    for t in range(net.num_steps):
        logits_NK, v = step(x[t] if x.dim() == 5 else x, v)
        steps.append(logits_NK)
    assert whole_TNK.std() > 0.01
    assert len({float(logits.sum()) for logits in whole_TNK}) > 1  # the potentials matter
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(torch.stack(steps), whole_TNK, **tolerance)


def test_a_call_leaves_nothing_behind():
    net, x = network("cnn8", num_steps=3)
    step = OneStep(net)
    first, v = step(x, None)
    kept = [a.clone() for a in v]
    step(x * 3, v)
    assert all(torch.equal(a, b) for a, b in zip(v, kept, strict=True))
    assert torch.equal(step(x, None)[0], first)
    assert net.num_steps == 3


def test_one_neuron_by_hand():
    neuron, spikes, kept = LIF(tau=0.2), [], None
    for i in (0.4, 0.45, 0.1, 0.7):
        s, kept = neuron.step(torch.tensor([[i]]), kept)
        spikes.append((float(s), round(float(kept), 4)))
    assert spikes == [(0.0, 0.4), (1.0, 0.0), (0.0, 0.1), (1.0, 0.0)]


@pytest.mark.parametrize(("name", "steps"), [("resnet19", 4), ("vggsnn", 5)])
def test_early_answers_are_those_of_the_running_mean(name, steps):
    net, x = network(name, num_steps=steps, backend="eager")
    net, x = net.double(), x.double()
    with torch.no_grad():
        logits_TNK = net(x)
    mean_TNK = logits_TNK.cumsum(0) / torch.arange(1, steps + 1).view(-1, 1, 1)
    best_TN = mean_TNK.softmax(2).amax(2)
    threshold = float(best_TN.median())
    expected_N = [
        next((t + 1 for t in range(steps) if best_TN[t, n] >= threshold), steps) for n in range(best_TN.shape[1])
    ]
    assert len(set(expected_N)) > 1
    seen = []
    step = OneStep(net)
    step.net.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[0]))
    logits_NK, taken_N = answer_early(step, x, steps, threshold)
    assert taken_N.tolist() == expected_N
    torch.testing.assert_close(logits_NK, torch.stack([mean_TNK[t - 1, n] for n, t in enumerate(expected_N)]))
    assert seen == [sum(t > s for t in expected_N) for s in range(max(expected_N))]  # what has ended is not computed


def test_threshold_one_is_the_whole_pass():
    net, x = network("cnn8", num_steps=3, backend="eager")
    logits_NK, taken_N = answer_early(OneStep(net), x, 3, 1.0)
    assert taken_N.tolist() == [3] * 5
    with torch.no_grad():
        torch.testing.assert_close(logits_NK, net(x).mean(0))


def test_refusals():
    net = create_model("cnn8", width_mult=0.125, image_size=16).eval()
    with pytest.raises(InputError, match="fold"):
        OneStep(net)
    with pytest.raises(InputError, match="ANN"):
        OneStep(create_model("cnn8", width_mult=0.125, image_size=16, ann=True).eval())
    with pytest.raises(InputError, match="0.9 is a start"):
        answer_early(OneStep(fold(net)), torch.zeros(1, 3, 16, 16), 2, 1.5)
