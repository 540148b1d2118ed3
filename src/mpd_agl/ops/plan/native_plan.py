"""A folded network as one native call (plan.cpp): spikes as bytes, each neuron joined to its convolution.

`models.plan` walks a network and describes it here as places (what lies between two layers) and layers. This file lays
the weights out as the kernels read them, and owns all memory of a run: it is taken once for the largest batch, and a
call allocates nothing but its logits.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops.library import Place, Plan, PlanLayer, PlanSynapse

CHANNELS = 16
"""Places of spikes have channels in multiples of this."""
MOST_BYTES = 48 << 20
"""Of all places of one call; larger batches run in parts, which also stay in the caches."""
POOL, MEAN, LINEAR, CONV = range(4)


def padded(channels: int) -> int:
    """Channels with the padding that the kernels want."""
    return -(-channels // CHANNELS) * CHANNELS


@dataclass(frozen=True)
class PlaceSpec:
    """What lies between two layers: spikes and sums of them, whole numbers up to `most`; or floats (most = 0)."""

    height: int
    width: int
    channels: int
    """As the kernels see them: with padding."""
    most: int = 1
    border: int = 0
    alias: int = -1
    """The place whose memory this one is, seen in another shape."""


@dataclass(frozen=True)
class SynapseSpec:
    """A convolution (or a linear layer as one of 1x1): the place it reads, and its weight (C_out, K, K, C_in), padded.

    With a `scale` (C_out) the weights are whole numbers.
    """

    place: int
    weight: Tensor
    stride: int = 1
    pad: int = 0
    scale: Tensor | None = None


@dataclass(frozen=True)
class LayerSpec:
    """One layer; of a pooling layer only `kind`, `own.place` and `out` count."""

    kind: int
    own: SynapseSpec
    out: int
    """A place, or -1: the logits."""
    other: SynapseSpec | None = None
    residual: int = -1
    carried: int = -1
    carried_scale: Tensor | None = None
    bias: Tensor | None = None
    tau: Tensor | None = None
    v_th: Tensor | None = None
    soft_reset: bool = False


@dataclass
class _Prepared:
    """A plan's structs for one SIMD level, and whatever they point to."""

    plan: Any
    places: Any
    active: Any
    kept: list[Tensor]


def _in_parts(w_OKKC: Tensor, size: int) -> Tensor:
    """Weights as (C_out part, K, K, C_in, size)."""
    return w_OKKC.view(-1, size, *w_OKKC.shape[1:]).permute(0, 2, 3, 4, 1)


class NativePlan:
    """The network, ready to run on T timesteps: `run(x_SNHWC)` gives logits_TNK.

    `most_active` is the share of active inputs up to which a layer skips zeros; None leaves it to the kernels. It
    changes the time alone: both ways add in the same order.
    """

    def __init__(
        self,
        places: Sequence[PlaceSpec],
        layers: Sequence[LayerSpec],
        classes: int,
        num_steps: int,
        input_steps: int,
        most_active: float | None = None,
    ) -> None:
        self.specs, self.layer_specs, self.classes = list(places), list(layers), classes
        self.num_steps, self.input_steps, self.most_active = num_steps, input_steps, most_active
        self.made_for = native.level(), torch.get_num_threads()
        self._weights: list[Tensor] = []
        self._layers = self._lay_out()
        self.capacity = 0
        self._ready: _Prepared | None = None

    def part_of(self, batch: int) -> int:
        """Samples of one call; a larger batch runs in equal parts."""
        each = sum(self._bytes(spec, 1) for number, spec in enumerate(self.specs) if number and spec.alias < 0)
        parts = -(-batch // max(1, MOST_BYTES // each))
        return -(-batch // parts)

    def run(self, x_SNHWC: Tensor) -> Tensor:
        """logits_TNK of an input in this memory order, float32 on the CPU."""
        first = self.specs[0]
        wanted = (self.input_steps, x_SNHWC.shape[1], first.height, first.width, first.channels)
        ok = x_SNHWC.dtype == torch.float32 and x_SNHWC.device.type == "cpu" and tuple(x_SNHWC.shape) == wanted
        if not ok:
            got = f"{tuple(x_SNHWC.shape)}, {x_SNHWC.dtype} on {x_SNHWC.device}"
            raise InputError(f"this plan takes a float32 CPU tensor (S, N, H, W, C) like {wanted}, got {got}.")
        N = x_SNHWC.shape[1]
        part = self.part_of(N)
        if part == N:
            return self._call(x_SNHWC.contiguous())
        parts = [x_SNHWC[:, first : first + part].contiguous() for first in range(0, N, part)]
        return torch.cat([self._call(x) for x in parts], 1)

    def _call(self, x_SNHWC: Tensor) -> Tensor:
        N = x_SNHWC.shape[1]
        if self._ready is None or self.capacity < N:
            self._prepare(N)
        ready = self._ready
        assert ready is not None
        logits_TNK = torch.empty(self.num_steps, N, self.classes, dtype=torch.float32, device="cpu")
        ready.plan.N, ready.places[0].data = N, x_SNHWC.data_ptr()
        native.library().mpd_agl_plan_run(ctypes.byref(ready.plan), logits_TNK.data_ptr())
        return logits_TNK

    def active(self) -> list[float | None]:
        """The share of inputs that were not zero in the last call, of each layer that may skip them."""
        ready, found = self._ready, []
        if ready is None:
            return []
        for number, layer in enumerate(self.layer_specs):
            made = self._lists(ready.plan, number)[0] > 0
            place = self.specs[layer.own.place]
            values = self._steps(layer.own.place) * ready.plan.N * place.height * place.width * place.channels
            found.append(ready.plan.active[number] / values if made else None)
        return found

    def _steps(self, place: int) -> int:
        return self.input_steps if place == 0 else self.num_steps

    def _bytes(self, spec: PlaceSpec, batch: int) -> int:
        size = (spec.height + 2 * spec.border) * (spec.width + 2 * spec.border) * spec.channels
        return self.num_steps * batch * size * (1 if spec.most else 4)

    def _keep(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._weights.append(tensor.contiguous())
        return self._weights[-1].data_ptr()

    def _synapse(self, spec: SynapseSpec | None, *, dense_only: bool, weightless: bool) -> PlanSynapse:
        if spec is None:
            return PlanSynapse(place=-1)
        K, out = spec.weight.shape[1], PlanSynapse(place=spec.place, stride=spec.stride, pad=spec.pad)
        out.K = K
        if weightless:
            return out
        library, C_out = native.library(), spec.weight.shape[0]
        block, piece = library.mpd_agl_plan_block(C_out), library.mpd_agl_plan_piece(C_out)
        vnni = spec.scale is not None and library.mpd_agl_plan_vnni() and self.specs[spec.place].most > 0
        if not vnni:
            out.rows = self._keep(_in_parts(spec.weight.float(), piece))
        if spec.scale is not None:
            out.scale = self._keep(spec.scale.float())
            if not dense_only:
                out.whole = self._keep(_in_parts(spec.weight.to(torch.int16), block))
            if vnni:
                by_four = spec.weight.to(torch.int8).view(-1, piece, K, K, spec.weight.shape[3] // 4, 4)
                out.groups = self._keep(by_four.permute(0, 2, 3, 4, 1, 5))
        return out

    def _lay_out(self) -> Any:
        """The layers' structs; they point into `_weights`."""
        out = (PlanLayer * len(self.layer_specs))()
        for struct, spec in zip(out, self.layer_specs, strict=True):
            weightless = spec.kind in (POOL, MEAN)
            struct.kind, struct.out, struct.residual, struct.carried = spec.kind, spec.out, spec.residual, spec.carried
            struct.C_out, struct.soft_reset = spec.own.weight.shape[0], spec.soft_reset
            struct.own = self._synapse(spec.own, dense_only=spec.kind != CONV, weightless=weightless)
            struct.other = self._synapse(spec.other, dense_only=True, weightless=False)
            for name in ("bias", "carried_scale", "tau", "v_th"):
                setattr(struct, name, self._keep(getattr(spec, name)))
        return out

    def _lists(self, plan: Plan, layer: int) -> tuple[int, int]:
        """How many lists a layer makes, and the room in each."""
        cap = ctypes.c_int64(0)
        return native.library().mpd_agl_plan_lists(ctypes.byref(plan), layer, ctypes.byref(cap)), cap.value

    def _prepare(self, batch: int) -> None:
        """Take the memory for so many samples. Borders are zero from here on: nothing ever writes to them."""
        places, kept = (Place * len(self.specs))(), []
        for number, spec in enumerate(self.specs):
            where = places[number]
            where.H, where.W, where.C, where.border = spec.height, spec.width, spec.channels, spec.border
            where.most, where.steps = spec.most, self._steps(number)
            if spec.alias >= 0:
                where.data = places[spec.alias].data
            elif number:
                # room behind it, because a tile of bytes may be read four at a time
                kept.append(torch.zeros(self._bytes(spec, batch) + 64, dtype=torch.uint8, device="cpu"))
                where.data = kept[-1].data_ptr()
        plan, library = (
            Plan(N=batch, T=self.num_steps, threads=self.made_for[1], classes=self.classes),
            native.library(),
        )
        plan.layers, plan.places, plan.layer = (
            len(self.layer_specs),
            ctypes.addressof(places),
            ctypes.addressof(self._layers),
        )
        plan.most_active = -1.0 if self.most_active is None else self.most_active
        slots = places_ = values = 0
        for number, layer in enumerate(self.layer_specs):
            count, cap = self._lists(plan, number)
            slots, places_ = max(slots, count), max(places_, count * cap)
            if layer.own.scale is None and self.specs[layer.own.place].most > 1:
                values = max(values, count * cap)

        def take(count: int, dtype: torch.dtype) -> int:
            kept.append(torch.zeros(count + 64, dtype=dtype, device="cpu"))
            return kept[-1].data_ptr()

        plan.index, plan.value = take(places_, torch.uint8), take(values, torch.float32)
        plan.count = take(slots, torch.int16)
        active = (ctypes.c_int64 * plan.layers)()
        plan.active = ctypes.cast(active, ctypes.POINTER(ctypes.c_int64))
        line = 64
        plan.scratch_size = -(-library.mpd_agl_plan_scratch(ctypes.byref(plan)) // line) * line + line
        base = take(plan.scratch_size * plan.threads + line, torch.uint8)
        plan.scratch = base + -base % line
        self._ready, self.capacity = _Prepared(plan, places, active, kept), batch
