"""Monitors: where gradients live and die, per layer and timestep. Read-only, attachable to any training loop, cheap.

A snapshot is taken from the forward pass of every `every`-th step: firing rates, the share of neurons in the gradient-available interval,
kappa, and the measured moments of current and potential beside those that Theorems 1 and 2 predict.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import kernels
from mpd_agl.analysis.histogram import Histogram, histogram
from mpd_agl.core.mpd import Moments
from mpd_agl.errors import InputError
from mpd_agl.nn import Neuron, Pass, SpikingBlock, predicted


@dataclass(frozen=True)
class LayerSnapshot:
    """One layer at one step. `_T` lists have one value per timestep; `predicted_*` come from gamma, beta and tau alone."""

    rate_T: list[float]
    """Share of neurons that fire."""
    available_T: list[float]
    """Share of neurons with |v - v_th| < kappa/2: those that a gradient can pass."""
    kappa_T: list[float]
    mean_T: list[float]
    """Mean of the membrane potential before reset."""
    var_T: list[float]
    predicted_mean_T: list[float]
    """Theorem 2, the paper's moments."""
    predicted_var_T: list[float]
    exact_mean_T: list[float]
    """Theorem 2 with the exact mixture moments."""
    exact_var_T: list[float]
    input_mean: float
    """Mean of the pre-synaptic input over all timesteps (Theorem 1's subject)."""
    input_var: float
    rate_in: float
    """Share of inputs that are not zero."""
    tau: float
    gamma_bar: float
    gamma_rms: float
    beta_bar: float
    detail: "LayerDetail | None" = None
    """Only where the monitor was asked for it."""


@dataclass(frozen=True)
class LayerDetail:
    """What is too much for every snapshot of a long run."""

    potential: Histogram
    """The membrane potential before reset."""
    gamma_C: list[float]
    """Each channel's gamma, to 5 digits; where two currents are added, both layers' channels."""
    beta_C: list[float]


@dataclass(frozen=True)
class Snapshot:
    """All layers at one step, in network order."""

    step: int
    layers: dict[str, LayerSnapshot]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"step": self.step, "layers": {n: asdict(s) for n, s in self.layers.items()}}


class Monitor:
    """Collects snapshots from a network made of `SpikingBlock`s, in anyone's own loop.

    `detail` adds histograms of the potentials and every channel's gamma and beta.

    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16)
    >>> monitor = Monitor(net, every=1)
    >>> _ = net(torch.randn(4, 3, 16, 16)), monitor.step()
    >>> list(monitor.history[-1].layers)[:2], len(monitor.history[-1].layers["conv1"].kappa_T)
    (['conv1', 'conv2'], 2)
    """

    def __init__(self, net: nn.Module, every: int = 50, *, detail: bool = False) -> None:
        if every < 1:
            raise InputError(f"every must be at least 1, got {every}. 50 costs under 3 percent of training time.")
        self.every, self.steps, self.detail = every, 0, detail
        self.history: list[Snapshot] = []
        self._layers: dict[str, LayerSnapshot] = {}
        self._handles: list[Any] = []
        self._watched: list[tuple[Neuron, Callable[[Pass], None]]] = []
        blocks = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
        if not blocks:
            raise InputError("Monitor found no SpikingBlock in this network. Build it from mpd_agl.nn.SpikingBlock.")
        self.layers = list(blocks)
        for name, block in blocks.items():
            self._attach(name, block)

    @property
    def active(self) -> bool:
        """Whether the coming forward pass is looked at."""
        return self.steps % self.every == 0

    def step(self) -> Snapshot | None:
        """Call once after each training step; returns the snapshot of that step, if one was taken."""
        taken = None
        if self._layers:
            taken = Snapshot(self.steps, {n: self._layers[n] for n in self.layers if n in self._layers})
            self.history.append(taken)
            self._layers = {}
        self.steps += 1
        return taken

    def close(self) -> None:
        """Detach from the network."""
        for handle in self._handles:
            handle.remove()
        for neuron, watcher in self._watched:
            neuron.watchers.remove(watcher)
        self._handles.clear()
        self._watched.clear()

    def _attach(self, name: str, block: SpikingBlock) -> None:
        inputs: list[Tensor] = []

        def synapse_ran(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs[:] = [args[0].detach()] if self.active and not block.repeating else []

        def neuron_ran(seen: Pass) -> None:
            if self.active and inputs:
                self._layers[name] = _look(block, inputs.pop(), seen, self.detail)

        neuron = block.neuron
        neuron.watchers.append(neuron_ran)
        self._handles.append(block.synapse.register_forward_pre_hook(synapse_ran))
        self._watched.append((neuron, neuron_ran))


@torch.no_grad()
def _look(block: SpikingBlock, s_in: Tensor, seen: Pass, detail: bool) -> LayerSnapshot:
    neuron, x_SNC, kappa_T = block.neuron, seen.x_SNC.detach(), seen.kappa_T.detach()
    T, N, C = kappa_T.shape[0], x_SNC.shape[1], x_SNC.shape[2]
    zero_C, one_C = x_SNC.new_zeros(C), x_SNC.new_ones(C)
    to_current = seen.current_map or (zero_C, one_C, zero_C)
    if seen.v_TNC is None:
        sums_T6 = kernels.probe(x_SNC, *to_current, neuron.tau, kappa_T, backend=neuron.backend, **neuron.probed())
    else:
        sums_T6 = _sums(seen.v_TNC, x_SNC, kappa_T, neuron.v_th)
    sizes = [x_SNC[0].numel(), float(torch.count_nonzero(s_in)), s_in.numel()]
    if block.training and neuron.replicas is not None:  # other processes hold parts of this batch
        sums_T6, sizes = _all_parts(sums_T6, sizes, neuron.replicas)
    count, active, inputs = sizes
    means_T6 = sums_T6 / count
    affines = block.affines()
    gamma_C = torch.cat([a.gamma_C for a in affines]) if affines else torch.ones(1)
    beta_C = torch.cat([a.beta_C for a in affines]) if affines else torch.zeros(1)
    input_mean, input_square = means_T6[:, 4].mean(), means_T6[:, 5].mean()
    moments: dict[Moments, tuple[list[float], list[float]]] = {"paper": ([], []), "exact": ([], [])}
    for kind in moments:
        if affines:
            mean_T, std_T = predicted(affines, neuron.tau, T, kind)
            moments[kind] = (mean_T.tolist(), std_T.square().tolist())
    return LayerSnapshot(
        rate_T=means_T6[:, 0].tolist(),
        available_T=means_T6[:, 1].tolist(),
        kappa_T=kappa_T.tolist(),
        mean_T=means_T6[:, 2].tolist(),
        var_T=(means_T6[:, 3] - means_T6[:, 2] ** 2).tolist(),
        predicted_mean_T=moments["paper"][0],
        predicted_var_T=moments["paper"][1],
        exact_mean_T=moments["exact"][0],
        exact_var_T=moments["exact"][1],
        input_mean=float(input_mean),
        input_var=float(input_square - input_mean**2),
        rate_in=active / inputs,
        tau=float(neuron.tau.mean()),
        gamma_bar=float(gamma_C.mean()),
        gamma_rms=float(gamma_C.square().mean().sqrt()),
        beta_bar=float(beta_C.mean()),
        detail=LayerDetail(
            potential=histogram(x_SNC, *to_current, neuron.tau, v_th=neuron.v_th, num_steps=T),
            gamma_C=_short(gamma_C),
            beta_C=_short(beta_C),
        )
        if detail and N
        else None,
    )


def _sums(v_TNC: Tensor, i_SNC: Tensor, kappa_T: Tensor, v_th: Tensor | float) -> Tensor:
    """What `kernels.probe` gives, from potentials at hand."""
    v_TM, i_TM = v_TNC.double().flatten(1), i_SNC.expand_as(v_TNC).double().flatten(1)
    u_TM = v_TM - v_th
    near_TM = u_TM.abs() < kappa_T.double()[:, None] / 2
    rows = ((u_TM >= 0).double(), near_TM.double(), v_TM, v_TM * v_TM, i_TM, i_TM * i_TM)
    return torch.stack([row.sum(1) for row in rows], 1)


def _all_parts(sums_T6: Tensor, sizes: list[float], replicas: kernels.Replicas) -> tuple[Tensor, list[float]]:
    """The sums over a batch that several processes share."""
    all_ = replicas.sum(torch.cat([sums_T6.flatten(), sums_T6.new_tensor(sizes)]))
    return all_[:-3].view_as(sums_T6), all_[-3:].tolist()


def _short(x_C: Tensor) -> list[float]:
    return [float(f"{v:.5g}") for v in x_C.tolist()]
