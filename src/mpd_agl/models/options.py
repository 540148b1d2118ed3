"""The options of a network, for `create_model` and for a run's configuration alike."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from mpd_agl.core import Surrogate, get_surrogate
from mpd_agl.errors import unknown_name
from mpd_agl.nn import NORMS, Method, get_method
from mpd_agl.options import ConfigTable


def _surrogate(value: Any) -> str | Surrogate:
    if value is None or value == "auto":
        return "auto"
    if not isinstance(value, str | Surrogate):
        raise ValueError(f"a surrogate is a name or a Surrogate, got {value!r}.")
    get_surrogate(value)
    return value


def _method(value: Any) -> str | Method:
    if not isinstance(value, str | Method):
        raise ValueError(f"a method is a name or a Method, got {value!r}.")
    get_method(value)
    return value


def _norm(value: str) -> str:
    if value not in NORMS:
        raise unknown_name("norm", value, NORMS)
    return value


class ModelOptions(ConfigTable):
    """What a user chooses about a network; a network and a method may have further options of their own."""

    width_mult: float = Field(default=1.0, gt=0)
    """Multiplies every layer's channels; 1 is the paper's network, 0.125 a small one."""
    num_steps: int = Field(default=2, ge=1)
    """T: timesteps. Images are shown T times (the stem once); event data are cut into as many frames."""
    surrogate: Annotated[str | Surrogate, PlainValidator(_surrogate)] = "auto"
    """Shape of the surrogate gradient; auto: the method's own, else its usual one (mostly rectangular)."""
    v_th: float = Field(default=0.5, gt=0)
    """Firing threshold."""
    tau: float = Field(default=0.2, gt=0, lt=1)
    """Share of the potential that is kept from step to step (at the start, where it is learnt)."""
    norm: Annotated[str, AfterValidator(_norm)] = "tdbn"
    """Norm before each neuron: tdbn, bn, tebn, tab (both for this num_steps only), mpbn. ANNs have bn."""
    attention: Literal["none", "tcja"] = "none"
    """tcja: gates behind the last two stages of a convolutional network, for this num_steps only."""
    detach_reset: bool = False
    """No gradient through the reset."""
    start: Literal["rest", "mp-init"] = "rest"
    """Where potentials start: at rest, or at a learnt potential per layer (MP-Init, Kook et al. 2026)."""
    init: Literal["kaiming", "pytorch"] = "kaiming"
    """Convolutions: Kaiming fan-out (the authors' code) or PyTorch's default (the paper's text)."""
    backend: Literal["auto", "native", "triton", "compiled", "eager"] = "auto"
    """Implementation of the fused step; auto is native on a CPU, triton on a GPU, and what works where they do not."""
    conv_impl: Literal["auto", "dense", "event"] = "auto"
    """Convolutions behind the first layer: auto (each pass in its fastest way here), dense, or event (skips zeros)."""
    ann: bool = False
    """The same architecture as an ANN: batch norm and ReLU."""
    recompute: bool = False
    """Less memory for more time: stages are computed again in the backward pass; the numbers stay the same."""

    @model_validator(mode="after")
    def _check(self) -> "ModelOptions":
        if self.start == "mp-init" and self.recompute:
            raise ValueError(
                "start='mp-init' moves with every training pass, so a second pass would start elsewhere. "
                "Use it without recompute."
            )
        if self.attention != "none" and self.ann:
            raise ValueError("attention 'tcja' gates timesteps, and an ANN has none. Use attention='none' with ann.")
        return self


class NetworkOptions(ModelOptions):
    """Everything a network is made from. The options of a network of your own extend this class."""

    num_classes: int = Field(default=10, ge=1)
    in_channels: int = Field(default=3, ge=1)
    image_size: int = Field(default=32, ge=1)
    method: Annotated[str | Method, PlainValidator(_method)] = "mpd-agl"

    def channels(self, count: int) -> int:
        """A layer's channels at this width, at least 1."""
        return max(1, round(count * self.width_mult))
