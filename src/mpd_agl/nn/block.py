"""The seam that makes MPD-AGL work: a block that sees synapses, norm and neuron, and sets the surrogate's width from them.

Shapes: spikes_TNCHW (or TNF) in and out, T folded into the batch for the synapses. An input with one timestep and `num_steps` T stands for
T equal ones: its convolution is computed once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpd_agl import kernels
from mpd_agl.core import SURROGATES
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.neuron import Neuron
from mpd_agl.nn.norm import TdBatchNorm
from mpd_agl.nn.width import DeepTAGEWidth


def over_time(module: nn.Module, x_TNC: Tensor) -> Tensor:
    """Apply a module that knows no time: T is folded into the batch, one call for all steps."""
    y: Tensor = module(x_TNC.flatten(0, 1))
    return y.view(*x_TNC.shape[:2], *y.shape[1:])


def out_features(synapse: nn.Module) -> int:
    """Channels that a convolution or a linear layer gives."""
    if isinstance(synapse, nn.Conv2d):
        return synapse.out_channels
    if isinstance(synapse, nn.Linear):
        return synapse.out_features
    raise InputError(f"a synapse must be nn.Conv2d or nn.Linear, got {type(synapse).__name__}.")


class Current(nn.Module):
    """EventLayer and tdBN without a neuron: a normalised current, to be added to another before one neuron (Zheng et al. 2021)."""

    def __init__(self, synapse: nn.Module | None, norm: TdBatchNorm) -> None:
        super().__init__()
        self.synapse, self.norm = synapse, norm

    def forward(self, s_TNC: Tensor) -> Tensor:
        """The current i_TNC."""
        x_TNC = s_TNC if self.synapse is None else over_time(self.synapse, s_TNC)
        i_TNC: Tensor = x_TNC if self.norm is None else self.norm(x_TNC)
        return i_TNC


class SpikingBlock(nn.Module):
    """EventLayer - tdBN - neuron, with the surrogate's width from the method's rule, through the fused step.

    `synapse` is an `nn.Conv2d` or `nn.Linear`. The call starts at rest; there is no state to reset.

    >>> block = SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), method="mpd-agl")
    >>> images = torch.randn(4, 3, 32, 32)
    >>> block(images.unsqueeze(0), num_steps=2).shape
    torch.Size([2, 4, 8, 32, 32])
    """

    def __init__(
        self,
        synapse: nn.Module,
        *,
        method: str | Method = "mpd-agl",
        surrogate: str | None = None,
        v_th: float = 0.5,
        tau: float = 0.2,
        alpha: float = 1.0,
        detach_reset: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        rule = get_method(method)
        if surrogate is not None and surrogate not in SURROGATES:
            raise unknown_name("surrogate", surrogate, SURROGATES)
        shape = rule.surrogate or surrogate or "rectangular"
        if surrogate not in (None, shape):
            raise InputError(
                f"method {rule.name!r} has its own surrogate {shape!r}, got surrogate={surrogate!r}. Leave it out."
            )
        self.synapse = synapse
        self.norm: TdBatchNorm | None = TdBatchNorm(out_features(synapse), v_th=v_th, alpha=alpha)
        self.neuron: Neuron = rule.neuron(
            tau=tau, v_th=v_th, surrogate=shape, detach_reset=detach_reset, noise=rule.noise, backend=backend
        )
        self.width = rule.width()
        self.repeating = False  # True while a forward pass is computed a second time (see recompute)

    def norms(self, add: Current | None = None) -> Sequence[TdBatchNorm]:
        """The tdBN layers whose currents the neuron receives."""
        return [n for n in (self.norm, add.norm if add is not None else None) if n is not None]

    def kappa(self, num_steps: int, *, add: Current | None = None, x_SNC: Tensor | None = None) -> Tensor:
        """kappa_T from the parameters as they are now and, for a rule that needs the potentials, from the synapses' output x."""
        if isinstance(self.width, DeepTAGEWidth) and x_SNC is not None:
            sums_T6, count = self.observe(x_SNC, torch.ones(num_steps, device=x_SNC.device)), x_SNC[0].numel()
            if self.training and self.neuron.replicas is not None:
                *sums, total = self.neuron.replicas.sum(torch.cat([sums_T6.flatten(), sums_T6.new_tensor([count])]))
                sums_T6, count = torch.stack(sums).view_as(sums_T6), int(total)
            return self.width.from_potential(sums_T6[:, 3], sums_T6[:, 2], count, self.neuron.v_th).float()
        kappa_T: Tensor = self.width(self.norms(add), self.neuron, num_steps)
        return kappa_T

    def forward(
        self,
        s_SNC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        add: Current | None = None,
        add_from: Tensor | None = None,
    ) -> Tensor:
        """Spikes of T steps. `residual` is added to them (SEW-ADD); `add(add_from)` is a second current, added before the neuron."""
        T = s_SNC.shape[0] if num_steps is None else num_steps
        self._check(s_SNC, T)
        x_SNC = over_time(self.synapse, s_SNC)
        # Without gradients, or folded, there is no width: inference costs nothing.
        if not torch.is_grad_enabled() or self.norm is None:
            kappa_T = torch.ones(T, device=x_SNC.device)
        else:
            kappa_T = self.kappa(T, add=add, x_SNC=x_SNC)
        if self.norm is None or add is not None or self.neuron.is_noisy:
            i_SNC = x_SNC if self.norm is None else self.norm(x_SNC)
            if add is not None and add_from is not None:
                i_SNC = i_SNC + add(add_from)
            spikes: Tensor = self.neuron(i_SNC, kappa_T, residual=residual)
            return spikes
        self.norm.check(x_SNC)
        shared = self._shared_moments(x_SNC)
        s_TNC, mean_C, var_C = kernels.tdbn_neuron(
            x_SNC,
            self.norm.weight,
            self.norm.bias,
            self.norm.running_mean,
            self.norm.running_var,
            self.neuron.tau,
            kappa_T,
            num_steps=T,
            batch_stats=self.training,
            residual=residual,
            v_th=self.neuron.v_th,
            alpha=self.norm.alpha,
            eps=self.norm.eps,
            surrogate=self.neuron.surrogate,
            detach_reset=self.neuron.detach_reset,
            backend=self.neuron.backend,
            shared=shared,
        )
        if self.training:
            count = T * x_SNC[0].numel() // x_SNC.shape[2]
            self.norm.track(mean_C, var_C, count if shared is None else shared.total * (T // x_SNC.shape[0]))
        return s_TNC

    def _shared_moments(self, x_SNC: Tensor) -> kernels.SharedMoments | None:
        """The statistics of a training batch that other processes hold parts of."""
        if not self.training or self.norm is None or self.norm.replicas is None:
            return None
        return kernels.shared_moments(x_SNC, self.norm.replicas, backend=self.neuron.backend)

    def _check(self, s_SNC: Tensor, num_steps: int) -> None:
        flat = isinstance(self.synapse, nn.Linear)
        wanted = self.synapse.weight.shape[1] if flat else self.synapse.in_channels  # type: ignore[index]
        if num_steps < 1:
            raise InputError(f"num_steps must be at least 1, got {num_steps}. Use num_steps=2, as the paper does.")
        if s_SNC.dim() != (3 if flat else 5) or s_SNC.shape[2] != wanted or s_SNC.shape[0] not in (1, num_steps):
            shape = f"({num_steps}, N, {wanted})" if flat else f"({num_steps}, N, {wanted}, H, W)"
            raise InputError(
                f"this block takes {shape}, or 1 timestep that stands for {num_steps}, got {tuple(s_SNC.shape)}. "
                "A batch of images gets its time axis by images.unsqueeze(0)."
            )
        if not s_SNC.is_floating_point():
            raise InputError(
                f"this block takes floating-point input, got {s_SNC.dtype}. Scale it first, e.g. x.float() / 255."
            )

    @torch.no_grad()
    def current_map(self, x_SNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean_C, scale_C, beta_C of `i = (x - mean) scale + beta`, with the statistics that this block uses now for this x."""
        norm, C = self.norm, x_SNC.shape[2]
        if norm is None:
            return x_SNC.new_zeros(C), x_SNC.new_ones(C), x_SNC.new_zeros(C)
        mean_C, var_C = norm.running_mean, norm.running_var
        shared = self._shared_moments(x_SNC)
        if shared is not None:
            mean_C, var_C = shared.mean_C, shared.var_C
        elif self.training:
            mean_C, var_C = kernels.moments(x_SNC, backend=self.neuron.backend)
        return mean_C, norm.weight * (norm.alpha * norm.v_th) * torch.rsqrt(var_C + norm.eps), norm.bias

    @torch.no_grad()
    def observe(self, x_SNC: Tensor, kappa_T: Tensor) -> Tensor:
        """`kernels.probe` of the synapses' output x over T = len(kappa_T) steps, with the statistics that this block uses now."""
        neuron = self.neuron
        return kernels.probe(
            x_SNC, *self.current_map(x_SNC), neuron.tau, kappa_T, v_th=neuron.v_th, backend=neuron.backend
        )


class AnnBlock(nn.Module):
    """The iso-architecture counterpart: synapses - batch norm - ReLU, no time."""

    replicas: kernels.Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(self, synapse: nn.Module) -> None:
        super().__init__()
        self.synapse = synapse
        norm = nn.BatchNorm2d if isinstance(synapse, nn.Conv2d) else nn.BatchNorm1d
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.Identity = norm(out_features(synapse))

    def forward(self, x_TNC: Tensor, num_steps: int | None = None, *, residual: Tensor | None = None) -> Tensor:
        """Activations, with `residual` added; `num_steps` is taken for the sake of the shared networks and means nothing here."""
        y = self.synapse(x_TNC.flatten(0, 1))
        y = torch.relu(self.norm(y) if self.replicas is None or not self.training else self._shared_norm(y))
        y = y.view(*x_TNC.shape[:2], *y.shape[1:])
        return y if residual is None else y + residual

    def _shared_norm(self, x_NC: Tensor) -> Tensor:
        """Batch norm with the statistics of all processes' parts of the batch."""
        norm = self.norm
        if isinstance(norm, nn.Identity):
            return x_NC
        assert self.replicas is not None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        mean_C, var_C, count, _ = kernels.batch_moments(x_NC.unsqueeze(0), self.replicas)
        with torch.no_grad():
            norm.running_mean.lerp_(mean_C, norm.momentum or 0.1)
            norm.running_var.lerp_(var_C * (count / (count - 1)), norm.momentum or 0.1)
            norm.num_batches_tracked.add_(1)
        shape = [-1] + [1] * (x_NC.dim() - 2)
        scale_C = norm.weight * torch.rsqrt(var_C + norm.eps)
        return ((x_NC - mean_C.view(shape)) * scale_C.view(shape) + norm.bias.view(shape)).to(x_NC.dtype)


class Readout(nn.Module):
    """The last linear layer at each timestep: logits_TNK, no leak and no firing. Eq. 9 is their mean over T."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, s_TNF: Tensor) -> Tensor:
        """logits_TNK."""
        logits: Tensor = self.linear(s_TNF)
        return logits


def share_batch(net: nn.Module, replicas: kernels.Replicas | None) -> None:
    """Let a network's layers take training batches as parts of one that several processes share; None ends it.

    Statistics of tdBN are then the whole batch's, and so are DeepTAGE's norms and ASGL's mask: all processes have the same running
    statistics and widths, those of one process on the whole batch. Call it on every process; all run the same layers in the same order.
    """
    for module in net.modules():
        if hasattr(type(module), "replicas"):
            module.replicas = replicas  # type: ignore[assignment]
