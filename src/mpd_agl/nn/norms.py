"""The norms by name, for `SpikingBlock(norm=...)` and the networks. Adding one is registering one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.norm import BatchNorm, TdBatchNorm
from mpd_agl.plugins import load_plugins


@dataclass(frozen=True, kw_only=True)
class NormKind:
    """A norm under its name."""

    name: str
    norm: Callable[..., nn.Module]
    """Called with channels, v_th, alpha and num_steps (None where the caller did not say)."""
    about: str
    neuron: Callable[..., nn.Module] | None = None
    """Makes the neuron of such a block from a method's: called with that method's `neuron`, channels and its options.
    None: the method's own neuron."""


NORMS: dict[str, NormKind] = {}


def register_norm(kind: NormKind) -> NormKind:
    """Let `SpikingBlock` and every network take a norm of your own by its name."""
    if NORMS.setdefault(kind.name, kind) is not kind:
        raise InputError(f"there is a norm {kind.name!r} already. Give yours another name.")
    return kind


def get_norm(name: str) -> NormKind:
    """The norm of that name."""
    if name not in NORMS:
        load_plugins()
    if name not in NORMS:
        raise unknown_name("norm", name, NORMS)
    return NORMS[name]


def _tdbn(channels: int, *, v_th: float, alpha: float, num_steps: Any) -> TdBatchNorm:
    return TdBatchNorm(channels, v_th=v_th, alpha=alpha)


def _bn(channels: int, **_: Any) -> BatchNorm:
    return BatchNorm(channels)


register_norm(NormKind(name="tdbn", norm=_tdbn, about="batch norm that scales to alpha v_th (Zheng et al. 2021)"))
register_norm(NormKind(name="bn", norm=_bn, about="plain batch norm over time, batch and space"))
