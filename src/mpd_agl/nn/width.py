"""Width rules: small modules with one method that gives kappa_T, the surrogate's width at each timestep.

`width(potential)` takes what is known of the layer's potential (`nn.moments.Potential`). kappa_T carries no gradient,
except where the rule's own parameter is the width. A rule that reads the potentials of the batch at hand sets
`needs_batch = True` and finds their sums in `potential.batch`.
"""

import warnings
from functools import lru_cache

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import Moments, WidthForm
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.moments import Potential, moments_of


class Width(nn.Module):
    """Base of the rules."""

    needs_batch = False
    """Whether the rule reads the potentials of the batch at hand; the layer then measures them before every training
    pass.
    """

    reads_moments = True
    """Whether the rule asks for the potential's moments (`Potential.moments`); a lone neuron then measures them."""

    def forward(self, potential: Potential) -> Tensor:
        """kappa_T on the neuron's device."""
        raise InputError(f"{type(self).__name__} gives no width.")

    chain: float = 0
    """Layers in a row without a shortcut; in more than two, blocks bound what they pass down (`core.bounded_size`)."""

    def with_gain(self, potential: Potential) -> tuple[Tensor, Tensor | None]:
        """kappa_T, and gain_T: the factor on the surrogate's height at each step; None leaves it at 1/kappa."""
        return self(potential), None


def _positive(kappa: float) -> float:
    if not kappa > 0:
        raise InputError(f"kappa must be positive, got {kappa}. The usual width is 1.")
    return float(kappa)


class FixedWidth(Width):
    """kappa = 1 at every step: STBP-tdBN, and everyone's default."""

    reads_moments = False

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = _positive(kappa)

    def forward(self, potential: Potential) -> Tensor:
        """The constant."""
        return torch.full((potential.num_steps,), self.kappa, device=potential.tau.device)


class SingleStepWidth(FixedWidth):
    """kappa = 1, for a surrogate that is made for one timestep (S2NN, Suetake et al. 2023)."""

    def forward(self, potential: Potential) -> Tensor:
        """The constant; more than one timestep is refused."""
        if potential.num_steps > 1:
            raise InputError(
                f"method s2nn trains networks of one timestep, got num_steps={potential.num_steps}. "
                "Use num_steps=1 (--model.num_steps 1)."
            )
        return super().forward(potential)


class ScheduledWidth(Width):
    """Slope scheduling (Van den Berghe et al., NeurIPS 2025): the slope k rises from `first` to `last` while training.

    `kappa = 2/k` of the fast sigmoid. The share of the training that is done is the buffer `progress`, in [0, 1]: a
    training loop sets it before each step (`train.step` does; in your own loop `nn.set_progress(net, share)`). Ours is
    that equal shares of the training multiply the slope by equal factors: along a straight line it passes 10 in the
    first tenth, and the layers of a deep network are cut off from the loss before they have learnt.
    """

    reads_moments = False

    progress: Tensor

    def __init__(self, first: float = 1.0, last: float = 100.0) -> None:
        super().__init__()
        if min(first, last) <= 0:
            raise InputError(f"slopes must be positive, got {first} and {last}. The paper goes from 1 to 100.")
        self.first, self.last = first, last
        self.register_buffer("progress", torch.zeros(()))

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """2/k at this point of the training."""
        slope = self.first * (self.last / self.first) ** self.progress
        return (2 / slope).to(potential.tau.device).reshape(1).expand(potential.num_steps)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"slope {self.first:g} to {self.last:g}"


def set_progress(net: nn.Module, share: float) -> None:
    """Tell everything in a network that follows a schedule which share of the training is done, from 0 to 1."""
    for module in net.modules():
        if isinstance(progress := getattr(module, "progress", None), Tensor):
            progress.fill_(share)


class RelativeWidth(Width):
    """kappa = v_th, learnt with it: the surrogate is a function of v/v_th (TrSG, Kook et al. 2026; Diet-SNN, Rathi and
    Roy 2020).

    With `u = v - v_th` and a kappa that passes its gradient on, `dH/dv_th = -h - (u/kappa) h = -(v/v_th) h`: the
    derivative of H(v/v_th).
    """

    reads_moments = False

    def forward(self, potential: Potential) -> Tensor:
        """The threshold itself."""
        v_th = torch.as_tensor(potential.v_th, device=potential.tau.device)
        if v_th.dim():
            raise InputError(f"a relative width has one threshold per layer, got {len(v_th)}. Use one v_th.")
        return v_th.reshape(1).expand(potential.num_steps)


class LSGWidth(Width):
    """LSG (Lian et al. 2023): `2 v_th sqrt(1 + tau^2)`, the same at every step."""

    reads_moments = False

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """From the neuron's decay and threshold alone."""
        return core.lsg_width(potential.tau.mean(), potential.num_steps, v_th=potential.threshold)


class MPDWidth(Width):
    """The adaptive gradient rule (Eq. 7): `kappa_t = 2 std_t` of the potential.

    `moments="paper"` takes gamma_bar as Eq. 7 stands, `"exact"` the mixture's own variance. Where gamma_bar <= 0 the
    paper's rule has no meaning; |gamma_bar| is used, and kappa is kept from zero (`core.mpd_width`).
    """

    def __init__(self, moments: Moments = "paper") -> None:
        super().__init__()
        if moments not in ("paper", "exact"):
            raise unknown_name("moments", moments, ("paper", "exact"))
        self.moments: Moments = moments
        self._warned = False

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """From the potential's spread as it is now."""
        _, std_T = potential.moments(self.moments)
        return core.mpd_width(std_T, v_th=potential.threshold)

    def warn_of(self, gamma_C: Tensor) -> None:
        """Say once per layer that Eq. 7 has no meaning at gamma_bar <= 0 (on a CPU; monitors show it on a GPU)."""
        if self.moments != "paper" or self._warned or gamma_C.device.type != "cpu":
            return
        if (gamma_bar := float(gamma_C.mean())) <= 0:
            self._warned = True
            warnings.warn(
                f"gamma_bar of a norm is {gamma_bar:.4g}, where Eq. 7 needs a positive one: |gamma_bar| is used, and "
                "kappa is "
                f"at least {core.KAPPA_MIN:g} v_th; moments='exact' (method mpd-agl-exact) is defined for any gamma.",
                stacklevel=4,
            )

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"moments={self.moments}"


class QuantileWidth(Width):
    """Ours: kappa_t such that the share of gradient-available neurons is `share`, the mean included; exact moments."""

    def __init__(self, share: float = 0.4772) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise InputError(
                f"share must lie between 0 and 1, got {share}. The default 0.4772 gives kappa = 1 at the start."
            )
        self.share = share

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """Solved anew from the potential's moments."""
        mean_T, std_T = potential.moments("exact")
        return core.quantile_width(mean_T, std_T, v_th=potential.threshold, share=self.share)


class ChainWidth(Width):
    """Ours: width and height apart (method `mpd-gain`).

    The width lets the surrogate keep `core.chain_share(layers)` of the signal: the longer the way without a shortcut,
    the more. The height is `core.matched_gain`'s. Where that way is longer than a residual branch, blocks also bound
    the gradient's size (`core.bounded_size`). `layers` is the number of spiking layers on the longest way without a
    shortcut that the layer lies on: 2 in a ResNet, all of them in a plain network. Our networks set it; in your own
    call `nn.set_chain(net, layers)`.
    """

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        core.chain_share(layers)
        self.layers = layers

    @property
    def chain(self) -> float:  # type: ignore[override]
        """Its layers."""
        return self.layers

    def forward(self, potential: Potential) -> Tensor:
        """From the potential's moments, by a table of `core.chain_width`."""
        return self.with_gain(potential)[0]

    @torch.no_grad()
    def with_gain(self, potential: Potential) -> tuple[Tensor, Tensor | None]:
        """Both by one look into the table; the height belongs to the width before its lower bound."""
        mean_T, std_T = potential.moments("exact")
        relative_T, gain_T = self._looked_up(mean_T, std_T, potential).exp()
        return (std_T * relative_T).clamp_min(core.KAPPA_MIN * potential.threshold), gain_T

    def _looked_up(self, mean_T: Tensor, std_T: Tensor, potential: Potential) -> Tensor:
        """log(kappa/std) and log(gain) of each step, between the table's points."""
        table_2A: Tensor = _chain_table(potential.surrogate, self.layers, std_T.device).to(std_T.dtype)
        last = table_2A.shape[1] - 1
        place_T = (potential.threshold - mean_T) / std_T.clamp_min(1e-6) / _TABLE_STEP + last / 2
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
    return _made_chain_table(surrogate, layers, device)


@lru_cache(maxsize=256)
def _made_chain_table(surrogate: Surrogate, layers: float, device: torch.device) -> Tensor:
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


def _within(parameter: Tensor, low: Tensor | float, high: Tensor | float | None = None) -> Tensor:
    """The parameter's value kept in [low, high], its gradient passed on unchanged: it can come back from outside."""
    value = parameter.detach()
    kept = torch.maximum(value, torch.as_tensor(low, dtype=value.dtype, device=value.device))
    if high is not None:
        kept = torch.minimum(kept, torch.as_tensor(high, dtype=value.dtype, device=value.device))
    return parameter + (kept - value)


class LearnableWidth(Width):
    """PSG (Wang et al. 2025): the layer's width is itself a parameter, learned through dH/dkappa of the soft step."""

    reads_moments = False

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = nn.Parameter(torch.tensor(_positive(kappa)))

    def forward(self, potential: Potential) -> Tensor:
        """The parameter, kept from zero."""
        least = core.KAPPA_MIN * potential.threshold
        return _within(self.kappa, least).reshape(1).expand(potential.num_steps)


class SlopeWidth(Width):
    """ASGL (Wang et al. 2023): a learnable slope `a` of the soft step `clamp(a u + 1/2, 0, 1)`; kappa = 1/a."""

    reads_moments = False

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        if slope <= 0:
            raise InputError(f"slope must be positive, got {slope}. ASGL starts at 1.")
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, potential: Potential) -> Tensor:
        """1/a, with a kept within what keeps kappa between `KAPPA_MIN v_th` and its inverse."""
        least = core.KAPPA_MIN * potential.threshold
        return (1 / _within(self.slope, least, 1 / least)).reshape(1).expand(potential.num_steps)


class AtgoWidth(Width):
    """DS-ATGO (Jiang et al. 2026): `k0 (1 + tanh(theta_t - V_th))`, theta_t the threshold that the batch gives.

    `form="sigma"` has the potential's standard deviation in theta's place, as the published code does. The neuron
    asks for it where it has measured both (`nn.rivals.AtgoNeuron`); a plot or a monitor asks with a batch's sums.
    """

    reads_moments = False

    needs_batch = True

    def __init__(self, form: WidthForm = "threshold", width: float = 1.0) -> None:
        super().__init__()
        self.form, self.width = form, width

    def of(self, theta_T: Tensor, std_T: Tensor, v_th: Tensor | float) -> Tensor:
        """From thresholds and deviations per timestep."""
        return core.atgo_width(theta_T, std_T, v_th=float(v_th), width=self.width, form=self.form)

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """From the moments of a batch; without one the width at theta = V_th."""
        if potential.batch is None:
            return torch.full((potential.num_steps,), self.width, device=potential.tau.device)
        mean_T, var_T = moments_of(potential.batch)
        n = potential.batch.values
        std_T = (var_T * (n / max(n - 1, 1))).sqrt()
        return self.of(mean_T + std_T, std_T, potential.threshold).float()

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"form={self.form}"


class DeepTAGEWidth(Width):
    """The width of DeepTAGE: `delta_t = w sigma_t/sigma_1 + 1 - w`, from the norms of the potentials themselves."""

    reads_moments = False

    needs_batch = True

    def __init__(self, weight: float = 0.25) -> None:
        super().__init__()
        self.weight = weight

    @torch.no_grad()
    def forward(self, potential: Potential) -> Tensor:
        """`sigma_t^2 = sum v^2 - 2 v_th sum v + n v_th^2`.

        Without potentials (evaluation, plots): 1, the width at t = 1.
        """
        sums, v_th = potential.batch, potential.threshold
        if sums is None:
            return torch.ones(potential.num_steps, device=potential.tau.device)
        squares_T = sums.square_T - 2 * v_th * sums.sum_T + sums.values * v_th * v_th
        return core.deeptage_width(squares_T.clamp_min(0).sqrt(), weight=self.weight).float()
