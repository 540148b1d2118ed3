"""What `adapt` does to each layer: the scale of its potential and the rule of its width are decided here."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from mpd_agl.adaptation.find import Layer
from mpd_agl.core import Surrogate, get_surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import MeasuredMoments, Method, Width, set_chain

Calibrate = bool | Literal["threshold", "force"]
Moments = Literal["auto", "predicted", "measured"]
Source = Literal["own", "rule", "predicted", "measured"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the caller of `adapt` asked for."""

    method: Method | None
    calibrate: Calibrate
    spread: float | None
    moments: Moments
    surrogate: str | Surrogate | None
    momentum: float
    every: int
    chain: int | None

    def __post_init__(self) -> None:
        if self.moments not in ("auto", "predicted", "measured"):
            raise unknown_name("moments", self.moments, ("auto", "predicted", "measured"))
        if self.calibrate not in (True, False, "threshold", "force"):
            raise unknown_name("calibrate", self.calibrate, ("True", "False", "threshold", "force"))
        if self.spread is not None and not 0 < self.spread < 100:
            raise InputError(
                f"spread, the potential's deviation in thresholds, must be positive, got {self.spread}. 1 is usual."
            )
        if self.every < 1:
            raise InputError(
                f"every must be at least 1, got {self.every}. The default measures every 8th training pass."
            )
        MeasuredMoments(self.momentum)  # refuses what is no momentum
        if (rule := self.method) is not None and rule.replaces_neuron:
            raise InputError(
                f"method {rule.name!r} is a neuron of its own ({rule.about}), and adapt keeps yours. Use a method that "
                "is a width alone, such as mpd-agl, or build the layer with mpd_agl.nn.SpikingBlock."
            )

    @property
    def shape(self) -> Surrogate | None:
        """The shape that replaces the neurons' own: the caller's, else the method's if it has one."""
        found = self.surrogate if self.surrogate is not None or self.method is None else self.method.surrogate
        return None if found is None else get_surrogate(found)

    @property
    def rule(self) -> str:
        """The rule of the widths, in the result."""
        return "their own widths" if self.method is None else self.method.name


@dataclass(frozen=True)
class Choice:
    """What is done to one layer."""

    spread: float | None
    """Standard deviation of the potential, in thresholds, that it is scaled to; None: it is not scaled."""
    width: Width | None
    """The rule of its width; None: it keeps its own."""
    source: Source
    """Where the width comes from: its own, the rule alone, or the rule and moments."""


def choose(layer: Layer, layers: int, request: Request) -> Choice:
    """From what is known of a layer after one pass, in a network of so many spiking layers."""
    spread = None
    if request.calibrate is not False:
        spread = usual_spread(layer) if request.spread is None else request.spread
    if request.method is None:
        return Choice(spread, None, "own")
    width = request.method.width()
    set_chain(width, layers if request.chain is None else request.chain)
    if width.needs == "nothing":
        return Choice(spread, width, "rule")
    predicts = width.needs == "moments" and is_predictable(layer) and request.moments != "measured"
    return Choice(spread, width, "predicted" if predicts else "measured")


def usual_spread(layer: Layer) -> float:
    """1, as tdBN has it; 2 behind a norm of each token.

    There the neuron encodes a stream of real numbers, to which every block adds. At 1 it fires at 13 % and a stack of 8
    blocks reaches 58 %; at 2 it fires at 25 % and reaches 68 % (docs/adapt.md says how that was chosen).
    """
    each_token = bool(layer.norms) and all(isinstance(m, (nn.LayerNorm, nn.RMSNorm)) for _, m in layer.norms)
    return 2.0 if each_token else 1.0


def is_predictable(layer: Layer) -> bool:
    """Whether Theorem 2 holds: the norms' outputs are the current, the potential leaks by a share, and that once."""
    membrane = layer.adapter.membrane(layer.neuron)
    is_first_order = membrane.kept is not None and membrane.current_kept is None
    return layer.predictable and is_first_order and layer.num_calls == 1
