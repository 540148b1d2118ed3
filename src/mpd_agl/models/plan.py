"""A network prepared for inference: folded, laid out once, answered by one native call (`ops.plan`).

At batch 1 most of a network's time goes into the framework's calls per layer. A plan has none of them: spikes are bytes
between layers, every neuron runs on its convolution's output while that is in the cache, and nothing is allocated but
the logits. With `int8`, all synapses but the first block's and the readout's have weights of 8 bits with a scale per
output channel; their sums are exact whole numbers, and potentials stay float32. That is the network which `export
--int8` writes.
"""

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models.base import Network
from mpd_agl.nn import Current, Neuron, Readout, SpikingBlock, fold, is_folded
from mpd_agl.nn.fold import affine_map, whole
from mpd_agl.ops import NeuronSpec, library
from mpd_agl.ops.plan.native_plan import CONV, LINEAR, MEAN, POOL, LayerSpec, NativePlan, PlaceSpec, SynapseSpec, padded

MOST = 255
"""Sums of spikes are bytes."""


def plan_unavailable(net: nn.Module) -> str:
    """Why there is no inference plan for this network in evaluation mode; "" where there is one."""
    try:
        _laid_out(_folded(net), int8=False)
    except InputError as error:
        return str(error)
    return ""


def _folded(net: nn.Module) -> Network:
    """A folded copy on the CPU."""
    if reason := library.load()[1]:
        raise InputError(f"an inference plan runs in C++: {reason}.")
    if not isinstance(net, Network) or net.options.ann:
        kind = "an ANN" if isinstance(net, Network) else type(net).__name__
        raise InputError(f"an inference plan is for the spiking networks of mpd_agl.models, got {kind}. Use fold(net).")
    return (copy.deepcopy(net) if is_folded(net) else fold(net)).cpu()


def _laid_out(net: Network, int8: bool) -> tuple[list[PlaceSpec], list[LayerSpec]]:
    """The places and layers of a folded network, in the order in which they run."""
    build = _PlanBuilder(net, int8)
    net.describe(build, 0)
    return build.bordered(), build.layers


class InferencePlan(nn.Module):
    """`run(x)` gives the logits_TNK of `net.eval()(x)`, for images (N, C, H, W) or frames (T, N, C, H, W) of any N.

    A copy of the network's weights as they are now; later training does not reach it. `num_steps` may be set to another
    T. Potentials may differ from the network's by the order of additions, so a neuron within rounding of its threshold
    may fire in one and not in the other.

    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16).eval()
    >>> run = InferencePlan(net)
    >>> run(torch.randn(1, 3, 16, 16)).shape
    torch.Size([2, 1, 10])
    """

    def __init__(self, net: Network, *, int8: bool = False, most_active: float | None = None) -> None:
        super().__init__()
        self._net = [_folded(net)]  # hidden: a plan has no parameters
        self.int8, self.most_active = int8, most_active
        self.num_steps, self.options, self.name = net.num_steps, net.options, net.name
        self.places, self.layers = _laid_out(self._net[0], int8)
        self._plans: dict[Any, NativePlan] = {}
        self._lock = threading.Lock()
        self.eval()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        """logits_TNK."""
        net = self._net[0]
        net.num_steps = self.num_steps
        x_SNCHW = net.check(x)
        with self._lock:
            return self.native(x_SNCHW.shape[0]).run(x_SNCHW.float().permute(0, 1, 3, 4, 2))

    def run(self, x: Tensor) -> Tensor:
        """logits_TNK."""
        return self.forward(x)

    def native(self, input_steps: int) -> NativePlan:
        """The native plan for images (1) or for T frames, at the SIMD level and threads of now."""
        key = self.num_steps, input_steps, library.level(), torch.get_num_threads()
        if key not in self._plans:
            where = self.options.num_classes, self.num_steps, input_steps, self.most_active
            self._plans = {key: NativePlan(self.places, self.layers, *where)}  # the one before gives its memory back
        return self._plans[key]

    def extra_repr(self) -> str:
        """Shown by print(plan)."""
        return f"{self.name}, T={self.num_steps}, {'int8' if self.int8 else 'float32'}, {len(self.layers)} layers"


class _PlanBuilder:
    """Lays a network out (`models.graph.Builder`); what flows is the number of a place."""

    def __init__(self, net: Network, int8: bool) -> None:
        o = net.options
        self.int8 = int8
        self.places = [PlaceSpec(o.image_size, o.image_size, o.in_channels, most=0)]
        self.layers: list[LayerSpec] = []
        self.divisor = {0: 1}
        """By place: its whole numbers are so many times the values that they represent."""
        self.real = [o.in_channels]
        """Channels of each place without padding."""
        self.flattened: dict[int, int] = {}
        """By place: the picture whose values it holds in one pixel."""

    def _place(self, spec: PlaceSpec, channels: int, divisor: int = 1) -> int:
        self.places.append(spec)
        self.real.append(channels)
        self.divisor[len(self.places) - 1] = divisor
        return len(self.places) - 1

    def block(
        self, name: str, block: nn.Module, at: int, *, residual: int | None = None, current_input: int | None = None
    ) -> int:
        """A folded spiking block: the place of its spikes."""
        assert isinstance(block, SpikingBlock)
        if block.norm is not None:
            raise InputError(
                f"a plan takes norms that fold into the synapse, and {name} has {type(block.norm).__name__}. "
                "Use fold(net)."
            )
        if not isinstance(block.neuron, Neuron):
            raise InputError(f"a plan knows LIF and PLIF, and {name} has {type(block.neuron).__name__}. Use fold(net).")
        neuron = block.neuron.portable()
        own, bias_C = self.synapse(name, block.synapse, at)
        channels, tau_C = bias_C.shape[0], torch.as_tensor(neuron.tau).detach().float()
        gain_C = (1 - tau_C if neuron.decay_input else torch.ones(())).expand(channels)
        other = carried_scale = None
        if current_input is not None:
            (current,) = block.currents
            assert isinstance(current, Current)
            if current.synapse is None:
                found = affine_map(current.norm)
                if found is None or found[0].dim() != 1:
                    raise InputError(
                        f"a plan takes norms that are affine maps, and {name} adds another. Use fold(net)."
                    )
                carried_scale, shift_C = (a.detach() for a in found)
            else:
                other, shift_C = self.synapse(name, current.synapse, current_input)
            bias_C = bias_C + shift_C
        spikes = 1 + (0 if residual is None else self.places[residual].most)
        if spikes > MOST:
            raise InputError(f"a plan counts spikes in bytes, and a sum at {name} reaches {spikes}. Use fold(net).")
        height, width = self._out_size(own)
        out = self._place(PlaceSpec(height, width, padded(channels), spikes), channels)
        self.layers.append(
            LayerSpec(
                LINEAR if self.places[at].most == 0 and isinstance(block.synapse, nn.Linear) else CONV,
                _times(own, gain_C),
                out,
                other=None if other is None else _times(other, gain_C),
                residual=-1 if residual is None else residual,
                carried=current_input if current_input is not None and carried_scale is not None else -1,
                carried_scale=None if carried_scale is None else _fill(carried_scale * gain_C, 0.0),
                bias=_fill(bias_C * gain_C, 0.0),
                **_constants(neuron, channels),
            )
        )
        return out

    def current(self, name: str, current: Current, at: int, *, added_to: int | None = None) -> int:
        """Not laid out."""
        raise InputError(f"a plan knows no membrane shortcuts, which {name} is on. Use fold(net).")

    def gate(self, name: str, gate: nn.Module, at: int) -> int:
        """Not laid out."""
        raise InputError(f"a plan does not know {type(gate).__name__}, which {name} is. Use fold(net).")

    def _out_size(self, own: SynapseSpec) -> tuple[int, int]:
        place, K = self.places[own.place], own.weight.shape[1]
        height, width = ((n + 2 * own.pad - K) // own.stride + 1 for n in (place.height, place.width))
        return height, width

    def synapse(
        self, name: str, synapse: nn.Module | None, at: int, *, exact: bool = False
    ) -> tuple[SynapseSpec, Tensor]:
        """A synapse on that place, and its bias; `exact` leaves the weights unchanged."""
        stride, pad = 1, 0
        if isinstance(synapse, nn.Conv2d) and _is_plain(synapse):
            stride, pad = synapse.stride[0], int(synapse.padding[0])
            w_OKKC = synapse.weight.detach().permute(0, 2, 3, 1)
        else:
            if not isinstance(synapse, nn.Linear):
                raise InputError(
                    f"a plan knows square convolutions without groups and linear layers, and {name} has {synapse}. "
                    "Use fold(net)."
                )
            weight = synapse.weight.detach()
            # A picture that was flattened has its channels first, and its place has them last.
            if at in self.flattened:
                flattened = self.flattened[at]
                picture, real = self.places[flattened], self.real[flattened]
                w_OCHW = weight.view(-1, real, picture.height, picture.width)
                weight = nn.functional.pad(w_OCHW, (0, 0, 0, 0, 0, picture.channels - real)).permute(0, 2, 3, 1)
            w_OKKC = weight.reshape(weight.shape[0], 1, 1, -1)
        if not bool(torch.isfinite(w_OKKC).all()):
            raise InputError("the network's weights hold NaN or Inf. Use an earlier checkpoint.")
        bias_C = torch.zeros(w_OKKC.shape[0]) if synapse.bias is None else synapse.bias.detach().float()
        scale_C, divisor = None, self.divisor[at]
        if self.int8 and not exact and at > 0:
            w_OKKC, scale_C = whole(w_OKKC.float())
            if self.places[at].most == 0:  # real inputs: whole weights, float arithmetic
                w_OKKC, scale_C = w_OKKC * scale_C.view(-1, 1, 1, 1), None
        if divisor > 1:  # a power of two: no rounding
            if scale_C is None:
                w_OKKC = w_OKKC / divisor
            else:
                scale_C = scale_C / divisor
        extra = self.places[at].channels - w_OKKC.shape[3], padded(w_OKKC.shape[0]) - w_OKKC.shape[0]
        w_OKKC = nn.functional.pad(w_OKKC, (0, extra[0], 0, 0, 0, 0, 0, extra[1])).contiguous()
        return SynapseSpec(at, w_OKKC, stride, pad, None if scale_C is None else _fill(scale_C, 1.0)), bias_C

    def pool(self, at: int) -> int:
        """2x2 sums; an average is a quarter of them."""
        place = self.places[at]
        spec = PlaceSpec(place.height // 2, place.width // 2, place.channels, 4 * place.most)
        if spec.most > MOST or not place.most:
            raise InputError("a plan pools spikes, up to three times in a row. Use fold(net).")
        out = self._place(spec, self.real[at], 4 * self.divisor[at])
        self.layers.append(LayerSpec(POOL, SynapseSpec(at, torch.empty(padded(1), 2, 2, 0), 2), out))
        return out

    def mean(self, at: int) -> int:
        """Means over a picture, as floats; of a picture of one pixel its values."""
        place = self.places[at]
        out = self._place(PlaceSpec(1, 1, place.channels, 0), self.real[at], self.divisor[at])
        self.layers.append(LayerSpec(MEAN, SynapseSpec(at, torch.empty(padded(1), 1, 1, 0)), out))
        if place.alias >= 0:
            self.flattened[out] = place.alias
        return out

    def flat(self, at: int) -> int:
        """The picture as one pixel with all its values."""
        place = self.places[at]
        channels = place.height * place.width * place.channels
        out = self._place(PlaceSpec(1, 1, channels, place.most, alias=at), channels, self.divisor[at])
        self.flattened[out] = at
        return out

    def readout(self, readout: Readout, at: int) -> int:
        """The logits."""
        at = self.mean(at) if self.places[at].most else at
        own, bias_K = self.synapse("readout", readout.linear, at, exact=True)
        self.layers.append(LayerSpec(LINEAR, own, -1, bias=_fill(bias_K, 0.0)))
        return at

    def bordered(self) -> list[PlaceSpec]:
        """The places, with zeros around each that a convolution with padding reads."""
        need = [0] * len(self.places)
        for layer in self.layers:
            for synapse in (layer.own, layer.other):
                if synapse is not None and self.places[synapse.place].most:
                    need[synapse.place] = max(need[synapse.place], synapse.pad)
        return [
            PlaceSpec(p.height, p.width, p.channels, p.most, border, p.alias)
            for p, border in zip(self.places, need, strict=True)
        ]


def _is_plain(conv: nn.Conv2d) -> bool:
    square = all(len(set(a)) == 1 for a in (conv.kernel_size, conv.stride, conv.padding))
    return square and conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"


def _constants(neuron: NeuronSpec, channels: int) -> dict[str, Any]:
    """tau, v_th and reset of a layer."""
    tau_C, v_th_C = (torch.as_tensor(a).detach().float().expand(channels) for a in (neuron.tau, neuron.v_th))
    return {"tau": _fill(tau_C, 0.0), "v_th": _fill(v_th_C, 1.0), "soft_reset": neuron.reset == "soft"}


def _fill(values_C: Tensor, value: float) -> Tensor:
    """A vector with the padding channels."""
    return nn.functional.pad(values_C.float(), (0, padded(values_C.shape[0]) - values_C.shape[0]), value=value)


def _times(synapse: SynapseSpec, gain_C: Tensor) -> SynapseSpec:
    """The synapse with its output multiplied."""
    if bool((gain_C == 1).all()):
        return synapse
    gain_C = _fill(gain_C, 0.0)
    if synapse.scale is None:
        weight = synapse.weight * gain_C.view(-1, 1, 1, 1)
        return SynapseSpec(synapse.place, weight, synapse.stride, synapse.pad)
    return SynapseSpec(synapse.place, synapse.weight, synapse.stride, synapse.pad, synapse.scale * gain_C)
