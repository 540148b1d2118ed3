"""Monitors: where gradients live and die, per layer and timestep. They only look, fit into any training loop, and cost
little.

A snapshot is taken from every `every`-th step: firing rates, the share of neurons in the gradient-available interval,
widths, the moments of the potential as measured and as Theorems 1 and 2 predict them, and the gradients that reach the
spikes.

A monitor watches the neurons of `mpd_agl.nn`, alone or in a `SpikingBlock`, and those that `mpd_agl.adaptation` reads:
SpikingJelly's, snnTorch's, Norse's and one's own (`register_neuron`). It keeps sums, never potentials, so its memory
does not grow with the network, the timesteps or the steps.
"""

from typing import Literal

from torch import nn

from mpd_agl.adaptation.adapters import adapter_of
from mpd_agl.adaptation.spike import adaptive_spikes, watch_only
from mpd_agl.diagnosis.probes import ForeignProbe, Hook, LayerSums, NativeProbe
from mpd_agl.diagnosis.snapshot import Mode, Snapshot
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import Neuron, SpikingBlock
from mpd_agl.nn.called import in_backward

WHEN = ("training", "evaluation", "both")


class Monitor:
    """Collects snapshots from a spiking network, in anyone's own loop: call `step()` after each training step.

    `when` chooses the passes: "training" (the default), "evaluation" or "both", which gives a snapshot of each.
    `detail` adds histograms of the potentials, spikes per channel, and every channel's gamma and beta. Neurons that
    cannot be watched are in `not_watched`, with the reason. `close()` leaves the network as it was; copies and pickles
    of a watched network are not watched.

    >>> import torch
    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16)
    >>> monitor = Monitor(net, every=1)
    >>> _ = net(torch.randn(4, 3, 16, 16)), monitor.step()
    >>> list(monitor.history[-1].layers)[:2], len(monitor.history[-1].layers["conv1"].kappa_T)
    (['conv1', 'conv2'], 2)
    """

    def __init__(
        self,
        net: nn.Module,
        every: int = 50,
        *,
        when: Literal["training", "evaluation", "both"] = "training",
        detail: bool = False,
    ) -> None:
        if every < 1:
            raise InputError(f"every must be at least 1, got {every}. 50 costs under 3 percent of training time.")
        if when not in WHEN:
            raise unknown_name("when", when, WHEN)
        self.every, self.steps, self.when, self.detail = every, 0, when, detail
        self.history: list[Snapshot] = []
        self.not_watched: dict[str, str] = {}
        """Spiking neurons that are not watched, and why."""
        self._sums: dict[tuple[Mode, str], LayerSums] = {}
        self._passes = 0
        self._watched: dict[str, NativeProbe | ForeignProbe] = {}
        self._attach(net)
        self.layers = list(self._watched)
        if not self.layers:
            found = "".join(f" {name}: {why}." for name, why in list(self.not_watched.items())[:3])
            raise InputError(
                "no spiking neuron that can be watched was found in this network. "
                "Build it from mpd_agl.nn, SpikingJelly, snnTorch or Norse, or make your own neuron known by "
                f"mpd_agl.adaptation.register_neuron.{found}"
            )
        self._root = net.register_forward_pre_hook(Hook(self._pass_begins))

    def _attach(self, net: nn.Module) -> None:
        in_blocks = {m.neuron for m in net.modules() if isinstance(m, SpikingBlock)}
        adapted = {neuron: spike for _, neuron, spike in adaptive_spikes(net)}
        for name, module in list(net.named_modules()):
            block = module if isinstance(module, SpikingBlock) else None
            neuron: nn.Module = module if block is None else block.neuron
            if isinstance(neuron, Neuron):
                if block is not None or neuron not in in_blocks:
                    self._watched[name] = NativeProbe(self._sums_of, self.detail, name, neuron, block)
            elif block is not None and adapter_of(neuron) is None:
                self.not_watched[name] = (
                    f"{type(neuron).__name__} is none of mpd_agl.nn's neurons; register_neuron makes it known"
                )
            elif block is None and adapter_of(neuron) is not None:
                spike = adapted.get(neuron) or watch_only(neuron)
                if isinstance(spike, str):
                    self.not_watched[name] = spike
                else:
                    self._watched[name] = ForeignProbe(self._sums_of, self.detail, name, neuron, spike)

    @property
    def active(self) -> bool:
        """Whether the coming forward pass is looked at."""
        return self.steps % self.every == 0

    def step(self) -> Snapshot | None:
        """Call once after each training step; returns the snapshot of that step, if one was taken.

        With `when="both"` there may be two, of evaluation and of training: both are in `history`, the one of training
        is returned.
        """
        taken = None
        for mode in ("evaluation", "training"):
            names = [n for n in self.layers if (mode, n) in self._sums]
            if names:
                ran = tuple(n for m, n in self._sums if m == mode)
                layers = {n: self._watched[n].snapshot(self._sums[mode, n]) for n in names}
                taken = Snapshot(self.steps, layers, mode, ran)
                self.history.append(taken)
        self._sums = {}
        self.steps += 1
        return taken

    def close(self) -> None:
        """Detach from the network."""
        self._root.remove()
        for layer in self._watched.values():
            layer.detach()
        self._watched, self._sums = {}, {}

    def _pass_begins(self, *_: object) -> None:
        self._passes += 1

    def _sums_of(self, name: str, training: bool) -> LayerSums | None:
        """Where a layer's pass is to be added; None where this pass is skipped, as a checkpoint's second one is."""
        mode: Mode = "training" if training else "evaluation"
        if not self.active or self.when not in (mode, "both") or in_backward():
            return None
        sums = self._sums.setdefault((mode, name), LayerSums(training))
        sums.pass_number = self._passes
        return sums
