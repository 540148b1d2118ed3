"""What all networks share.

Input checks, the walk from images or frames to logits_TNK, and the blocks they are made of.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models.gates import get_gate
from mpd_agl.models.graph import Builder, Flow
from mpd_agl.models.options import NetworkOptions
from mpd_agl.nn import AnnBlock, BatchNorm, Current, Readout, SpikingBlock, get_method, get_norm
from mpd_agl.nn.recompute import recompute, run
from mpd_agl.ops import LOCAL, Sync

Layer = SpikingBlock | AnnBlock


class Network(nn.Module):
    """Base of the networks: `(N, C, H, W)` images or `(T, N, C, H, W)` frames in, `logits_TNK` out. Stateless.

    The prediction is the mean of the logits over T (Eq. 9). `num_steps` may be set to another T at any time.
    """

    sync: Sync = LOCAL
    """The processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(self, name: str, options: NetworkOptions) -> None:
        super().__init__()
        self.name, self.options, self.num_steps = name, options, options.num_steps
        self.method = get_method(options.method).with_options(options)
        self.surrogate = None if options.surrogate == "auto" else options.surrogate

    @property
    def is_tied_to_steps(self) -> bool:
        """Whether a part of the network takes only the T that it was built for."""
        return any(getattr(m, "tied_to_steps", False) for m in self.modules())

    def conv(self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> Layer:
        """A block on a convolution without bias (tdBN has one)."""
        return self.block(self.synapse(in_channels, out_channels, kernel, stride))

    def synapse(self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
        """The convolution itself, in channels_last memory."""
        conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
        if self.options.init == "kaiming":
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
        return conv

    def linear(self, in_features: int, out_features: int) -> Layer:
        """A block on a linear layer without bias."""
        return self.block(nn.Linear(in_features, out_features, bias=False))

    def block(
        self, synapse: nn.Module, alpha: float | None = None, currents: Sequence[Current] = (), *, spikes: bool = True
    ) -> Layer:
        """A synapse with norm and neuron, or with batch norm and ReLU in an ANN; `currents` are added before the
        neuron. `spikes`: that is what the synapse reads.
        """
        if self.options.ann:
            return AnnBlock(synapse)
        return self._spiking(synapse, currents=currents, alpha=alpha, conv_impl=self._conv_impl(spikes))

    def _conv_impl(self, spikes: bool) -> str:
        """How the next synapse computes; the network's first one reads an image, others may read no spikes either."""
        return self.options.conv_impl if spikes and next(self.children(), None) is not None else "dense"

    def neuron_block(self, channels: int, sources: Sequence[nn.Module] = (), v_th: float | None = None) -> nn.Module:
        """A neuron on a current that was added up before it, a ReLU in an ANN. Its width comes from the norms in
        `sources`, or is measured where none are given.
        """
        if self.options.ann:
            return Relu()
        return self._spiking(None, sources=sources, channels=channels, v_th=self.options.v_th if v_th is None else v_th)

    def _spiking(self, synapse: nn.Module | None, **own: Any) -> SpikingBlock:
        """A block with this network's options."""
        o = self.options
        shared: dict[str, Any] = {
            "method": self.method,
            "surrogate": self.surrogate,
            "v_th": o.v_th,
            "tau": o.tau,
            "norm": o.norm,
            "num_steps": o.num_steps,
            "detach_reset": o.detach_reset,
            "backend": o.backend,
        }
        return SpikingBlock(synapse, **(shared | own))

    def current(
        self, synapse: nn.Conv2d | None, channels: int, alpha: float | None = None, *, spikes: bool = True
    ) -> Current:
        """A normalised current without a neuron; `spikes`: that is what the synapse reads."""
        o, conv_impl = self.options, self._conv_impl(spikes)
        if o.ann:
            return Current(synapse, BatchNorm(channels), "dense")
        scale = {"v_th": o.v_th, "alpha": 1.0 if alpha is None else alpha}
        return Current(synapse, get_norm(o.norm).norm(channels, **scale, num_steps=o.num_steps), conv_impl)

    def gate(self, channels: int, stages_left: int) -> nn.Module | None:
        """The gate behind a stage, if the options ask for one and at most one stage follows."""
        o = self.options
        return get_gate(o.attention)(channels, o.num_steps) if o.attention != "none" and stages_left < 2 else None

    def stage(self, parts: Sequence[nn.Module], s_TNCHW: Tensor, num_steps: int) -> Tensor:
        """Parts of the network in order, computed again in the backward pass where the options ask for it."""
        if self.options.recompute and self.training:
            return recompute(parts, s_TNCHW, num_steps)
        return run(parts, s_TNCHW, num_steps)

    def forward(self, x: Tensor) -> Tensor:
        """logits_TNK."""
        x_SNCHW = self.check(x)
        T = self.num_steps if not self.options.ann else x_SNCHW.shape[0]
        logits_TNK = self.run(x_SNCHW, T)
        # On a GPU the input is not looked at, which would wait for the device: a NaN in it makes the logits NaN.
        return logits_TNK if x.device.type == "cpu" else logits_TNK + 0 * x_SNCHW.sum()

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """The network itself; with S = 1 the input is shown T times."""
        raise InputError(f"{type(self).__name__} defines no network.")

    def describe(self, build: Builder[Flow], flow: Flow) -> Flow:
        """The network layer by layer, for plans and NIR."""
        raise InputError(f"{self.name} does not describe its layers, as plans and NIR need it. Use ONNX or fold().")

    def check(self, x: Tensor) -> Tensor:
        """The input as (S, N, C, H, W) in channels_last memory; a sentence for anything else."""
        o, T = self.options, self.num_steps
        if T < 1:
            raise InputError(f"num_steps must be at least 1, got {T}. Use num_steps=2, as the paper does.")
        image = f"{o.in_channels}, {o.image_size}, {o.image_size}"
        if x.dim() not in (4, 5) or tuple(x.shape[-3:]) != (o.in_channels, o.image_size, o.image_size):
            raise InputError(
                f"{self.name} takes images (N, {image}) or frames ({T}, N, {image}), got {tuple(x.shape)}. "
                "Pass in_channels and image_size to create_model, or resize the input."
            )
        if not x.is_floating_point():
            raise InputError(
                f"{self.name} takes floating-point input, got {x.dtype}. "
                "Scale and normalise it first, e.g. x.float() / 255."
            )
        if x.dim() == 5 and not o.ann and x.shape[0] != T:
            raise InputError(
                f"{self.name} runs {T} timesteps, got frames of {x.shape[0]}: {tuple(x.shape)}. "
                "Frames are time-major, (T, N, C, H, W); set net.num_steps to use another T."
            )
        # One process's part of a shared batch may be empty or a single sample.
        part = self.training and self.sync.is_shared
        if x.shape[-4] < 1 and not part:
            raise InputError(f"{self.name} takes at least one sample, got an empty batch: {tuple(x.shape)}.")
        if self.training and not part and x.shape[-4] < 2:
            raise InputError(
                "training needs a batch of at least 2 for its batch statistics, got 1. "
                "Use a larger batch, or net.eval() for inference."
            )
        # A spike hides a NaN, so the input is looked at. Elsewhere than on a CPU that would wait for the device: see
        # `forward`.
        looks = x.device.type == "cpu" and not part and not torch.compiler.is_compiling()
        if looks and not torch.isfinite(x.sum(dtype=torch.float32)):
            bad = int((~torch.isfinite(x)).sum())
            raise InputError(f"the input holds {bad} NaN or Inf values. Check the data and its normalisation.")
        if x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last).unsqueeze(0)
        x_NCHW = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return x_NCHW.view(x.shape)


class Relu(nn.Module):
    """An ANN's activation where a spiking network has a neuron."""

    def forward(self, x_TNC: Tensor, num_steps: int | None = None) -> Tensor:
        """Activations."""
        return torch.relu(x_TNC)


class Pool(nn.Module):
    """2x2 average pooling at each timestep (2AP)."""

    def forward(self, x_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """Half the size; an odd last row or column is dropped."""
        y = nn.functional.avg_pool2d(x_TNCHW.flatten(0, 1), 2)
        return y.view(*x_TNCHW.shape[:2], *y.shape[1:])


def readout(features: int, options: NetworkOptions) -> Readout:
    """The last layer."""
    return Readout(features, options.num_classes)
