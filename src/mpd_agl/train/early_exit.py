"""Quick answers of a trained network: folded, on the best backend here, and given as soon as they are sure."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl import ops
from mpd_agl.errors import InputError
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import Network
from mpd_agl.models.onestep import OneStep, answer_early
from mpd_agl.models.plan import InferencePlan, plan_unavailable
from mpd_agl.nn import Neuron, fold
from mpd_agl.ops import backends_here
from mpd_agl.train.evaluate import Batches
from mpd_agl.train.losses import mean_output

MOST_DIFFERENT = 0.02
"""Rounding may change the prediction of samples that lie between two classes, so many at most; more is a mistake."""


def fast_network(net: Network, device: torch.device) -> tuple[nn.Module, str]:
    """The network in its fastest form here, and what it is.

    On a CPU that is an inference plan, or, for a network that it does not know, the folded network on the native
    kernels. Elsewhere it is the folded network on the backend that `auto` means.
    """
    if net.options.ann:
        return fold(net), "folded"
    found = ops.resolve("auto", device, torch.float32).name
    if found == "native" and not (why := plan_unavailable(net)):
        return InferencePlan(net), "folded, one native call"
    folded = fold(net)
    for module in folded.modules():
        if isinstance(module, Neuron):
            module.backend = found
    return folded, f"folded, {found}" + (f" ({why})" if found == "native" else "")


def int8_network(net: Network, device: torch.device) -> tuple[nn.Module, str]:
    """The network with hidden weights of 8 bits: as a plan with whole-number arithmetic on a CPU, else in floats.

    Both compute the same function: whole numbers this small are exact in float32 too.
    """
    if device.type == "cpu" and not backends_here()["native"] and not plan_unavailable(net):
        return InferencePlan(net, int8=True), "folded, int8 weights, one native call"
    return plain_network(net, int8=True).to(device), "folded, int8 weights in float arithmetic"


@torch.no_grad()
def compare_predictions(plain: nn.Module, fast: nn.Module, batches: Batches, device: torch.device) -> tuple[int, int]:
    """How many predictions of the first batch differ, and how many there are; an error if it is more than rounding."""
    with batches.epoch(0) as epoch:
        x = next(iter(epoch))[0].to(device)
    a_N, b_N = (mean_output(net(x)).argmax(1) for net in (plain, fast))
    differ, count = int((a_N != b_N).sum()), len(a_N)
    if differ > max(1, MOST_DIFFERENT * count):
        raise InputError(
            f"the fast path gives other predictions than the plain one for {differ} of {count} samples. "
            "Evaluate without --fast."
        )
    return differ, count


@dataclass(frozen=True)
class Early:
    """Early answers at one threshold, over a data set."""

    threshold: float
    accuracy: float
    loss: float
    mean_steps: float
    steps_share: list[float]
    """Share of samples that took 1, 2, .. T steps."""
    ms_per_image: float
    """Of the network alone."""


def early_answers(
    net: Network, batches: Batches, num_steps: int, thresholds: Sequence[float], device: torch.device
) -> list[Early]:
    """A folded network's early answers at each threshold; 1 takes all steps (unless a softmax rounds to 1)."""
    step, found = OneStep(net), []
    for threshold in thresholds:
        right, count, loss, taken_T, seconds = 0, 0, 0.0, torch.zeros(num_steps + 1, dtype=torch.int64), 0.0
        with batches.epoch(0) as epoch:
            for x, y in epoch:
                began = time.perf_counter()
                logits_NK, taken_N = answer_early(step, x.to(device), num_steps, threshold)
                logits_NK = logits_NK.cpu()
                seconds += time.perf_counter() - began
                right += int((logits_NK.argmax(1) == y).sum())
                loss += float(F.cross_entropy(logits_NK, y, reduction="sum"))
                taken_T += torch.bincount(taken_N.cpu(), minlength=num_steps + 1)
                count += len(y)
        share_T = (taken_T[1:] / count).tolist()
        mean = sum((t + 1) * s for t, s in enumerate(share_T))
        found.append(Early(threshold, right / count, loss / count, mean, share_T, 1e3 * seconds / count))
    return found
