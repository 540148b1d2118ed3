"""A convolution or linear layer whose three passes are computed each in a way of its own: torch's dense one,
event-driven, with sums looked up, Winograd's.

All ways compute the same function; they differ in time and in the order of additions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops.conv import active, lookup, winograd
from mpd_agl.ops.conv.active import ActiveLists
from mpd_agl.ops.conv.lookup import Bits

KNOWN = {
    "forward": ("dense", "event", "winograd", "lookup"),
    "weight_grad": ("dense", "event", "winograd", "lookup"),
    "input_grad": ("dense", "winograd"),
}
PASSES = tuple(KNOWN)


@dataclass(frozen=True)
class Ways:
    """How each pass is computed: `dense`, `winograd`, or (not the input gradient) `event` or `lookup`."""

    forward: str = "dense"
    weight_grad: str = "dense"
    input_grad: str = "dense"

    @property
    def needs_lists(self) -> bool:
        """Whether a pass needs the active lists."""
        return "event" in (self.forward, self.weight_grad)

    @property
    def needs_bits(self) -> bool:
        """Whether a pass needs the input's bits."""
        return "lookup" in (self.forward, self.weight_grad)

    def without_bits(self) -> "Ways":
        """For an input that has none: dense where sums would be looked up."""
        ways = {name: "dense" if way == "lookup" else way for name, way in self.to_dict().items()}
        return Ways(**ways)

    def __post_init__(self) -> None:
        for name, way in self.to_dict().items():
            if way not in KNOWN[name]:
                raise unknown_name(f"way of the {name} pass", way, KNOWN[name])

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return {name: getattr(self, name) for name in PASSES}


DENSE = Ways()
EVENT = Ways("event", "event")


def ways_of(weight: Tensor, stride: int, padding: int) -> dict[str, tuple[str, ...]]:
    """What each pass of a layer can be computed by, on an input for which `active.why_not` has nothing to say."""
    form = () if winograd.why_not(weight, stride, padding) else ("winograd",)
    small = form if weight.shape[0] * weight.shape[1] <= winograd.MOST_WEIGHTS else ()
    sums = () if lookup.why_not(weight, stride) else ("lookup",)
    return {
        "forward": ("dense", "event", *form, *sums),
        "weight_grad": ("dense", "event", *small, *sums),
        "input_grad": ("dense", *form),
    }


def pack(way: str, weight: Tensor) -> Tensor | None:
    """A weight in the order in which that way's forward pass reads it; keep it where the weight does not change."""
    if way == "dense":
        return None
    return {"event": active.pack, "winograd": winograd.pack, "lookup": lookup.pack}[way](weight)


def forward(
    way: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    lists: ActiveLists | None = None,
    packed: Tensor | None = None,
    bits: Bits | None = None,
) -> Tensor:
    """The layer's output."""
    if way == "lookup":
        bits = lookup.scan(x, weight, stride, padding) if bits is None else bits
        way = "dense" if bits is None else way
        if bits is not None:
            return lookup.forward(bits, x.shape, weight, bias, stride, padding, packed)
    if way == "event":
        lists = active.scan(x) if lists is None else lists
        return active.forward(lists, x.shape, weight, bias, stride, padding, packed)
    if way == "winograd":
        return winograd.forward(x, weight, bias, padding, packed)
    return F.conv2d(x, weight, bias, stride, padding) if weight.dim() == 4 else F.linear(x, weight, bias)


def weight_grad(
    way: str, x: Tensor | ActiveLists | Bits, shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int
) -> Tensor:
    """dL/dweight from the input, from its lists or from its bits."""
    if isinstance(x, Bits):
        return lookup.weight_grad(x, shape, weight, grad, stride, padding)
    if isinstance(x, ActiveLists):
        return active.weight_grad(x, shape, weight, grad, stride, padding)
    if way == "winograd":
        return winograd.weight_grad(x, weight, grad, padding)
    if weight.dim() == 2:
        return grad.t() @ x
    if weight.shape[2] == 1 and stride > 1 and padding == 0:  # see models.base.SubsampledConv
        x, stride = x[:, :, ::stride, ::stride], 1
    found: tuple[Any, Tensor, Any] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, (stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), 1, (False, True, False)
    )
    return found[1]


def input_grad(way: str, shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    """dL/dx."""
    if way == "winograd":
        return winograd.input_grad(weight, grad, padding)
    return active.input_grad(shape, weight, grad, stride, padding)


class _Conv(torch.autograd.Function):
    """Where the weight gradient is event-driven, keeps the lists and not the input; where it is looked up, the bits.

    The bits are a 32nd of the input for each bit of its largest value. The lists are a byte for each of its floats
    where all lists are 1, five bytes where their values are kept; channels are counted up to a multiple of 8, beyond
    128 to one of 128. Both are saved tensors: hooks and recomputation see them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        lists: ActiveLists | None,
        stride: int,
        padding: int,
        packed: Tensor | None,
        ways: Ways,
        bits: Bits | None,
    ) -> Tensor:
        ctx.scale = None if bits is None else bits.scale
        if ways.weight_grad == "event":
            assert lists is not None
            ctx.save_for_backward(weight, lists.index, lists.count, lists.ones, lists.value)
        elif ways.weight_grad == "lookup":
            assert bits is not None
            ctx.save_for_backward(weight, bits.planes)
        else:
            ctx.save_for_backward(weight, x.detach())  # lists that were handed on with x go with x
        ctx.where, ctx.ways = (x.shape, stride, padding), ways
        return forward(ways.forward, x, weight, bias, stride, padding, lists, packed, bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "create_graph=True takes gradients of gradients, which only dense convolutions have. "
                "Use conv_impl='dense'."
            )
        weight, *kept = ctx.saved_tensors
        shape, stride, padding = ctx.where
        where = shape, weight, grad, stride, padding
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = input_grad(ctx.ways.input_grad, *where)
        if ctx.needs_input_grad[1]:
            x: Tensor | ActiveLists | Bits = kept[0]
            if ctx.ways.weight_grad == "event":
                x = ActiveLists(shape[1], *kept)
            elif ctx.ways.weight_grad == "lookup":
                x = Bits(kept[0], ctx.scale)
            dw = weight_grad(ctx.ways.weight_grad, x, *where)
        if ctx.needs_input_grad[2]:
            db = grad.sum([d for d in range(grad.dim()) if d != 1])
        return dx, dw, db, None, None, None, None, None, None


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    lists: ActiveLists | None = None,
    packed: Tensor | None = None,
    ways: Ways = EVENT,
) -> Tensor:
    """`conv2d(x, weight, bias)` of (N, C, H, W), or `linear` of (N, F); event-driven it costs what its lists cost.

    `lists` are x's, where they are at hand; `packed` is `pack(ways.forward, weight)`, where it is kept.

    >>> x, w = (torch.rand(2, 8, 5, 5) < 0.1).float(), torch.randn(4, 8, 3, 3)
    >>> torch.allclose(conv(x, w, padding=1), torch.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    active.check(x.shape, weight, bias, stride, padding, lists)
    if ways != DENSE and (why := active.why_not(x)):
        raise InputError(f"only the dense layer takes this input: {why}. Use conv_impl='dense'.")
    if "winograd" in ways.to_dict().values() and (why := winograd.why_not(weight, stride, padding)):
        raise InputError(f"Winograd's form cannot compute this layer: {why}. Use dense or event.")
    if ways.needs_bits and (why := lookup.why_not(weight, stride)):
        raise InputError(f"this layer's sums cannot be looked up: {why}. Use dense or event.")
    if torch.compiler.is_compiling():
        y: Tensor = active.conv_op(x, weight, bias, stride, padding)
        return y
    if lists is None and ways.needs_lists:
        lists = active.scan(x)
    bits = lookup.scan(x, weight, stride, padding) if ways.needs_bits else None
    if ways.needs_bits and bits is None:
        ways, packed = ways.without_bits(), None if ways.forward == "lookup" else packed
    made = stride, padding, packed, ways, bits
    out: Tensor = _Conv.apply(x, weight, bias, lists, *made)  # type: ignore[no-untyped-call]
    return out
