"""Neurons as thin modules. Stateless: every call starts at rest, so there is nothing to reset and nothing to leak."""

import math

import torch
from torch import Tensor, nn

from mpd_agl import kernels
from mpd_agl.core import get_surrogate, lif, noisy_spike
from mpd_agl.errors import InputError, unknown_name


class Neuron(nn.Module):
    """What LIF and PLIF share: threshold, surrogate, reset, backend and, for ASGL, the noise of the training output."""

    tau: Tensor
    replicas: kernels.Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(
        self,
        *,
        tau: float = 0.2,
        v_th: float = 0.5,
        surrogate: str = "rectangular",
        detach_reset: bool = False,
        noise: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if not 0 < tau < 1:
            raise InputError(
                f"tau, the share of the potential that is kept, must lie between 0 and 1, got {tau}. The paper uses 0.2."
            )
        if v_th <= 0 or not math.isfinite(v_th):
            raise InputError(f"v_th must be positive, got {v_th}. The paper uses 0.5.")
        if not 0 <= noise < 1:
            raise InputError(
                f"noise, the share of soft outputs while training, must lie in [0, 1), got {noise}. ASGL uses 0.1 to 0.2."
            )
        if backend not in kernels.BACKENDS:
            raise unknown_name("backend", backend, kernels.BACKENDS)
        self.v_th, self.detach_reset, self.noise, self.backend = v_th, detach_reset, noise, backend
        self.surrogate = get_surrogate(surrogate).name
        self._set_decay(tau)

    def _set_decay(self, tau: float) -> None:
        """Keep the decay as the neuron's own kind: a buffer or a parameter."""
        raise InputError("Neuron is the base of LIF and PLIF; use one of them.")

    @property
    def is_noisy(self) -> bool:
        """Whether this call's output is ASGL's mixture of hard and soft spikes."""
        return self.training and self.noise > 0

    def forward(
        self,
        i_SNC: Tensor,
        kappa_T: Tensor,
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Spikes for a current of T steps, or of one step that stands for all T = len(kappa_T); `residual` is added to them."""
        if self.is_noisy:
            i_TNC = i_SNC.expand(kappa_T.shape[0], *i_SNC.shape[1:])
            # Under autocast, too, the membrane is float32.
            i_TNC = i_TNC.to(torch.promote_types(i_SNC.dtype, torch.float32))
            place = None if self.replicas is None else self.replicas.place(i_SNC.shape[1])

            def fire(u: Tensor, kappa: Tensor, t: int) -> Tensor:
                draw = torch.rand_like(u) if place is None else kernels.rand_like(u, place)
                return noisy_spike(u, kappa, (draw >= self.noise).to(u.dtype), self.surrogate)

            s_TNC, _ = lif(i_TNC, self.tau, kappa_T, v_th=self.v_th, detach_reset=self.detach_reset, fire=fire)
            s_TNC = s_TNC.to(i_SNC.dtype)
            return s_TNC if residual is None else s_TNC + residual
        spikes: Tensor = kernels.neuron(
            i_SNC,
            self.tau,
            kappa_T,
            num_steps=kappa_T.shape[0],
            residual=residual,
            v_th=self.v_th,
            surrogate=self.surrogate,
            detach_reset=self.detach_reset,
            backend=self.backend,
        )
        return spikes

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"tau={float(self.tau.detach()):.3f}, v_th={self.v_th}, surrogate={self.surrogate}"


class LIF(Neuron):
    """Leaky integrate-and-fire with a fixed decay (Eq. 2-3).

    >>> LIF()(torch.randn(4, 2, 8), torch.ones(4)).shape
    torch.Size([4, 2, 8])
    """

    def _set_decay(self, tau: float) -> None:
        self.register_buffer("tau", torch.tensor(float(tau)))


class PLIF(Neuron):
    """LIF with one learnable decay per layer: `tau = sigmoid(rho)` (Eq. 8; Fang et al. 2021)."""

    def _set_decay(self, tau: float) -> None:
        self.rho = nn.Parameter(torch.tensor(math.log(tau / (1 - tau))))

    @property
    def tau(self) -> Tensor:  # type: ignore[override]
        """The decay, `sigmoid(rho)`: what is kept of the potential from one step to the next."""
        return torch.sigmoid(self.rho)
