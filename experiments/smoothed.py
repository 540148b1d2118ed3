"""The direction of a surrogate gradient against an unbiased one, on a small network with noise in its potentials.

With normal noise of deviation `noise` before the threshold a neuron fires with probability Phi((v - v_th)/noise), so
the expected loss has a gradient, and `E[(L - b) grad log P(spikes)]` estimates it without bias (likelihood ratio, one
baseline b per image from the other draws). The surrogate gradient of the same draws is compared with it by its cosine.
Two halves of the draws tell how exact the estimate itself is.

Shapes: T timesteps, N images times draws, F features, D draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.core import Surrogate, get_surrogate, spike

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Widths in deviations of a layer's potential; Eq. 7 is 2."""


@dataclass(frozen=True, kw_only=True)
class Small:
    """A network of linear layers whose currents have the deviation v_th on the data at hand, as behind tdBN."""

    features: int
    classes: int = 10
    hidden: int = 32
    layers: int = 3
    num_steps: int = 2
    v_th: float = 0.5
    tau: float = 0.2
    noise: float = 0.25
    """The noise's deviation, as a share of the potential's."""


def start_weights(net: Small, x_NF: Tensor, seed: int) -> list[Tensor]:
    """Weights whose currents have the deviation v_th in every layer, spikes drawn as the network draws them."""
    made = torch.Generator().manual_seed(seed)
    weights, s_TNF = [], x_NF.expand(net.num_steps, *x_NF.shape)
    for _ in range(net.layers):
        w = torch.randn(net.hidden, s_TNF.shape[-1], generator=made) / math.sqrt(s_TNF.shape[-1])
        i_TNF = s_TNF @ w.T
        w = w * (net.v_th / i_TNF.std())
        weights.append(w)
        s_TNF = _layer(net, s_TNF @ w.T, None, 1.0, made)[0]
    weights.append(torch.randn(net.classes, net.hidden, generator=made) / math.sqrt(net.hidden))
    return weights


def _layer(
    net: Small, i_TNF: Tensor, surrogate: Surrogate | None, kappa: float, made: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes, log-probability of each image's spikes (gradients through the potential), potentials.

    Without a surrogate no gradient passes a spike; the log-probability is then the only way for one.
    """
    noise = net.noise * net.v_th
    kept = torch.zeros_like(i_TNF[0])
    spikes, potentials = [], []
    log_p_N = i_TNF.new_zeros(i_TNF.shape[1])
    for i_NF in i_TNF:
        v = net.tau * kept + i_NF
        u = v - net.v_th + noise * torch.randn(v.shape, generator=made)
        s = (u >= 0).to(v.dtype) if surrogate is None else spike(u, torch.tensor(kappa), surrogate)
        if surrogate is None:
            p = torch.special.log_ndtr((v - net.v_th) / noise), torch.special.log_ndtr((net.v_th - v) / noise)
            log_p_N = log_p_N + torch.where(s > 0, p[0], p[1]).sum(-1)
        kept = v * (1 - s)
        spikes.append(s)
        potentials.append(v)
    return torch.stack(spikes), log_p_N, torch.stack(potentials)


def run(
    net: Small, weights: Sequence[Tensor], x_NF: Tensor, surrogate: Surrogate | None, kappas: Sequence[float], seed: int
) -> tuple[Tensor, Tensor, list[float]]:
    """Logits, log-probabilities per image, and the deviation of each layer's potential."""
    made = torch.Generator().manual_seed(seed)
    s_TNF, log_p_N, deviations = x_NF.expand(net.num_steps, *x_NF.shape), x_NF.new_zeros(len(x_NF)), []
    for w, kappa in zip(weights[:-1], kappas, strict=True):
        s_TNF, own_N, v_TNF = _layer(net, s_TNF @ w.T, surrogate, kappa, made)
        log_p_N = log_p_N + own_N
        deviations.append(float(v_TNF.detach().std()))
    return (s_TNF @ weights[-1].T).mean(0), log_p_N, deviations


def unbiased(net: Small, weights: Sequence[Tensor], x_NF: Tensor, y_N: Tensor, draws: int, seed: int) -> list[Tensor]:
    """The likelihood-ratio gradient of the expected loss, the hidden layers' weights alone."""
    D, N = draws, len(y_N)
    leaves = [w.detach().requires_grad_() for w in weights]
    ones = [1.0] * net.layers
    logits, log_p, _ = run(net, leaves, x_NF.repeat(D, 1), None, ones, seed)
    loss_DN = F.cross_entropy(logits, y_N.repeat(D), reduction="none").view(D, N)
    kept_DN = loss_DN.detach()
    baseline_DN = (kept_DN.sum(0) - kept_DN) / (D - 1)
    target = ((kept_DN - baseline_DN) * log_p.view(D, N)).mean()
    grads = torch.autograd.grad(target, leaves[:-1])
    return list(grads)


def surrogate_gradient(
    net: Small, weights: Sequence[Tensor], x_NF: Tensor, y_N: Tensor, kappas: Sequence[float], draws: int, seed: int
) -> list[Tensor]:
    """The mean surrogate gradient of the sampled network."""
    leaves = [w.detach().requires_grad_() for w in weights]
    logits, _, _ = run(net, leaves, x_NF.repeat(draws, 1), get_surrogate("rectangular"), kappas, seed)
    grads = torch.autograd.grad(F.cross_entropy(logits, y_N.repeat(draws)), leaves[:-1])
    return list(grads)


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Of two gradients over all their tensors."""
    x, y = (torch.cat([t.flatten() for t in grads]).double() for grads in (a, b))
    return float(x @ y / (x.norm() * y.norm()).clamp_min(1e-300))


def compare(net: Small, x_NF: Tensor, y_N: Tensor, *, draws: int, repeats: int, seed: int = 0) -> dict[str, Any]:
    """Cosines by width, per layer and of all, and the largest cosine that the estimate's own noise allows."""
    weights = start_weights(net, x_NF, seed)
    halves: list[list[Tensor]] = []
    for half in range(2):
        parts = [unbiased(net, weights, x_NF, y_N, draws, 1000 * half + r) for r in range(repeats)]
        halves.append([torch.stack(layer).mean(0) for layer in zip(*parts, strict=True)])
    whole = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
    agreement = max(0.0, cosine(*halves))
    sigmas = run(net, weights, x_NF.repeat(4, 1), None, [1.0] * net.layers, 77)[2]
    found = {}
    for c in MULTIPLES:
        grads = surrogate_gradient(net, weights, x_NF, y_N, [c * s for s in sigmas], max(2, draws // 4), 5)
        layers = [cosine([g], [w]) for g, w in zip(grads, whole, strict=True)]
        found[f"{c:g}"] = {"all": cosine(grads, whole), "layers": layers}
    return {
        "net": dict(vars(net)),
        "draws": 2 * repeats * draws,
        "images": len(y_N),
        "sigma": sigmas,
        "halves": agreement,
        "largest": math.sqrt(2 * agreement / (1 + agreement)),
        "cosine": found,
    }
