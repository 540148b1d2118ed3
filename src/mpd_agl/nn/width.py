"""Width rules: small modules that give the surrogate's width, and a factor on its height, at each timestep.

`rule(potential)` takes what is known of the layer's potential (`nn.potential.Potential`) and returns `Widths`. They
carry no gradient, except where a rule's own parameter is the width.
"""

import math
import warnings
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import Moments
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.potential import Potential
from mpd_agl.ops import Widths


class Width(nn.Module):
    """Base of the rules."""

    needs: Literal["nothing", "moments", "batch"] = "nothing"
    """What the rule reads: nothing but the neuron's constants; the potential's moments, for which a lone neuron keeps
    running ones; or the sums over the current batch, for which the layer measures before every training pass.
    """

    max_growth: float = math.inf
    """The factor by which blocks let a gradient's size grow on its way down (`core.bounded_size`)."""

    def forward(self, potential: Potential) -> Widths:
        """kappa_T, and gain_T or None, on the neuron's device."""
        raise InputError(f"{type(self).__name__} gives no width. Write its forward(potential) -> Widths.")


def widths_of(rule: nn.Module, potential: Potential) -> Widths:
    """What a rule gives, checked."""
    found = rule(potential)
    name, wanted = type(rule).__name__, "returns Widths(kappa_T) or Widths(kappa_T, gain_T), one value per timestep"
    if not isinstance(found, Widths):
        raise InputError(f"a width rule {wanted}, got {type(found).__name__} from {name}. It is in mpd_agl.nn.")
    for values_T in found:
        if values_T is None:
            continue
        if not isinstance(values_T, Tensor) or values_T.shape != (potential.num_steps,):
            got = tuple(values_T.shape) if isinstance(values_T, Tensor) else repr(values_T)
            raise InputError(f"a width rule {wanted}, ({potential.num_steps},), got {got} from {name}.")
        looks = values_T.device.type == "cpu" and not torch.compiler.is_compiling()
        if looks and bool(((values_T <= 0) | values_T.isinf()).any()):  # NaN makes the gradients NaN, which is noticed
            raise InputError(
                f"the width rule {name} gave {values_T.tolist()}, and widths and gains are positive and finite. "
                "Check what it reads, or use a smaller learning rate."
            )
    return found


def checked_rule(rule: object) -> Width:
    """A rule, or a sentence for what is none."""
    if not isinstance(rule, Width):
        raise InputError(f"a width rule derives from mpd_agl.nn.Width, got {type(rule).__name__}.")
    return rule


def positive_width(kappa: float) -> float:
    """A width, checked."""
    if not kappa > 0 or not math.isfinite(kappa):
        raise InputError(f"kappa must be positive, got {kappa}. The usual width is 1.")
    return float(kappa)


class FixedWidth(Width):
    """kappa = 1 at every step: STBP-tdBN, and the default of most libraries."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = positive_width(kappa)

    def forward(self, potential: Potential) -> Widths:
        """The constant."""
        return Widths(torch.full((potential.num_steps,), self.kappa, device=potential.tau.device))


class LSGWidth(Width):
    """LSG (Lian et al. 2023): `2 v_th sqrt(1 + tau^2)`, the same at every step."""

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """From the neuron's decay and threshold alone."""
        return Widths(core.lsg_width(potential.tau, potential.num_steps, v_th=potential.v_th))


class MPDWidth(Width):
    """The adaptive gradient rule (Eq. 7): `kappa_t = 2 std_t` of the potential.

    `moments="paper"` takes gamma_bar as Eq. 7 stands, `"exact"` the mixture's own variance. Where gamma_bar <= 0 the
    paper's rule has no meaning; |gamma_bar| is used, and kappa is kept from zero (`core.mpd_width`).
    """

    needs = "moments"

    def __init__(self, moments: Moments = "paper") -> None:
        super().__init__()
        if moments not in ("paper", "exact"):
            raise unknown_name("moments", moments, ("paper", "exact"))
        self.moments: Moments = moments
        self._warned = False

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """From the potential's spread as it is now."""
        self._warn_of_gamma(potential)
        _, std_T = potential.moments(self.moments)
        return Widths(core.mpd_width(std_T, v_th=potential.v_th))

    def _warn_of_gamma(self, potential: Potential) -> None:
        """Say once per layer that Eq. 7 has no meaning at gamma_bar <= 0 (on a CPU; monitors show it on a GPU)."""
        if self._warned or self.moments != "paper" or not potential.affines or torch.compiler.is_compiling():
            return
        if potential.affines[0].gamma_C.device.type != "cpu":
            return
        # In a sum of currents the squares are added, and one gamma_bar above 0 is enough.
        gamma_bar = max(float(a.gamma_C.mean()) for a in potential.affines)
        if gamma_bar <= 0:
            self._warned = True
            warnings.warn(
                f"gamma_bar of a norm is {gamma_bar:.4g}, where Eq. 7 needs a positive one: |gamma_bar| is used, and "
                f"kappa is at least {core.KAPPA_MIN:g} v_th; moments='exact' (method mpd-agl-exact) is defined for any "
                "gamma.",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"moments={self.moments}"


class QuantileWidth(Width):
    """kappa_t such that the share of neurons inside the window is `share`, the mean included; exact moments."""

    needs = "moments"

    def __init__(self, share: float = 0.4772) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise InputError(
                f"share must lie between 0 and 1, got {share}. The default 0.4772 gives kappa = 1 at the start."
            )
        self.share = share

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """Solved again at every call, from the potential's moments."""
        mean_T, std_T = potential.moments("exact")
        return Widths(core.quantile_width(mean_T, std_T, v_th=potential.v_th, share=self.share))


class ChainWidth(Width):
    """Method `mpd-gain`: width and height set separately.

    The width lets the surrogate keep `core.chain_share(layers)` of the signal: the longer the way without a shortcut,
    the more. The height is `core.matched_gain`'s. `layers` is the number of spiking layers on the longest way without a
    shortcut through this layer: 2 in a ResNet, all of them in a plain network. The networks of `mpd_agl.models` set it;
    in your own call `nn.set_chain(net, layers)`.
    """

    needs = "moments"

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        core.chain_share(layers)
        self.layers = layers

    @property
    def max_growth(self) -> float:  # type: ignore[override]
        """`30^(1/layers)` in chains longer than a residual branch."""
        return core.CHAIN_GROWTH ** (1 / self.layers) if self.layers > 2 else math.inf

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """Both by one look into a table; the height belongs to the width before its lower bound."""
        mean_T, std_T = potential.moments("exact")
        relative_T, gain_T = self._looked_up(mean_T, std_T, potential).exp()
        return Widths((std_T * relative_T).clamp_min(core.KAPPA_MIN * potential.v_th), gain_T)

    def _looked_up(self, mean_T: Tensor, std_T: Tensor, potential: Potential) -> Tensor:
        """log(kappa/std) and log(gain) of each step, between the table's points."""
        table_2A: Tensor = _chain_table(potential.surrogate, self.layers, std_T.device).to(std_T.dtype)
        last = table_2A.shape[1] - 1
        place_T = (potential.v_th - mean_T) / std_T.clamp_min(1e-6) / _TABLE_STEP + last / 2
        place_T = place_T.nan_to_num(last / 2).clamp(0, last)  # NaN stays in the width, by std_T
        first_T = place_T.long().clamp_max(last - 1)
        part_T = place_T - first_T
        return table_2A[:, first_T] * (1 - part_T) + table_2A[:, first_T + 1] * part_T

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"layers={self.layers}"


def check_scaling(surrogate: Surrogate) -> None:
    """Refuse a shape that does not scale as `h(u; kappa) = h(u/kappa; 1)/kappa`: its height follows another rule."""
    u = torch.linspace(-4, 4, 33, dtype=torch.float64, device="cpu")
    if not torch.allclose(surrogate.grad(u, 1.0), 2 * surrogate.grad(2 * u, 2.0)):
        raise InputError(
            f"mpd-gain sets the height of surrogates that scale with their width, got {surrogate.name!r}. "
            "Use surrogate='triangular'."
        )


_TABLE_STEP = 0.125


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _chain_table(surrogate: Surrogate, layers: float, device: torch.device) -> Tensor:
    """The table from its cache: a compiler that traced the search would repeat it at every step."""
    return _computed_chain_table(surrogate, layers, device)


@lru_cache(maxsize=256)
def _computed_chain_table(surrogate: Surrogate, layers: float, device: torch.device) -> Tensor:
    """log(kappa/std) and log(gain) over `(v_th - mean)/std` from -8 to 8, the one number that both depend on."""
    check_scaling(surrogate)
    threshold_A = torch.arange(-64, 65, dtype=torch.float64, device="cpu") * _TABLE_STEP
    one_A = torch.ones_like(threshold_A)
    kappa_A = core.chain_width(-threshold_A, one_A, layers, surrogate, v_th=0.0)
    gain_A = core.matched_gain(-threshold_A, one_A, kappa_A, surrogate, v_th=0.0)
    return torch.stack([kappa_A.log(), gain_A.log()]).float().to(device)


def set_chain(net: nn.Module, layers: int) -> None:
    """Tell the width rules of a network how many spiking layers its longest way without a shortcut has."""
    core.chain_share(layers)
    for module in net.modules():
        if isinstance(module, ChainWidth):
            module.layers = layers


def set_progress(net: nn.Module, share: float) -> None:
    """Tell everything in a network that follows a schedule which share of the training is done, from 0 to 1.

    It is written into the buffer `progress` of every module that has one.
    """
    for module in net.modules():
        if isinstance(progress := getattr(module, "progress", None), Tensor):
            progress.fill_(share)
