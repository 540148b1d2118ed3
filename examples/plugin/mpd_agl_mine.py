"""A plugin: your own surrogate, width rule, network and data set, under names that every command takes.

    pip install ./examples/plugin
    mpd-agl train --method mine --model.name two-layers --data.name stripes --train.epochs 3
    mpd-agl train --method mine --model.reach 3 --model.name two-layers --model.stride 1 \\
        --data.name stripes --data.noise 40

The last lines of this file register them. Each is an object that you can also pass from Python without any registry.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mpd_agl.core import Surrogate, register_surrogate
from mpd_agl.data import ArraySet, DataSet, LoadOptions, register_dataset
from mpd_agl.models import Network, NetworkOptions, register_model
from mpd_agl.nn import PLIF, Method, Potential, Readout, Width, Widths, register_method
from mpd_agl.options import ConfigTable


@dataclass(frozen=True)
class Cosine(Surrogate):
    """A raised cosine of unit area and peak 1/kappa: `h(u) = (1 + cos(pi u/kappa)) / (2 kappa)` for |u| < kappa."""

    name: ClassVar[str] = "cosine"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """h(u; kappa)."""
        r = (u / kappa).clamp(-1, 1)
        return (1 + torch.cos(math.pi * r)) / 2 / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The step whose derivative is h."""
        r = (u / kappa).clamp(-1, 1)
        return (1 + r + torch.sin(math.pi * r) / math.pi) / 2


class MineOptions(ConfigTable):
    """What the method can be asked for; a run's [model] takes it."""

    reach: float = Field(default=2.0, gt=0)
    """The width, in distances of the potentials from the threshold."""


class DistanceWidth(Width):
    """kappa_t is `reach` times the root mean square distance of this batch's potentials from the threshold."""

    needs = "batch"  # the layer measures the potentials before every training pass

    def __init__(self, reach: float = 2.0) -> None:
        super().__init__()
        self.reach = reach

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """kappa_T."""
        sums = potential.sums()
        if sums is None:  # outside of training, for example for a plot
            mean_T, std_T = potential.moments("exact")
            var_T = std_T.square()
        else:
            mean_T, var_T = sums.moments()
        return Widths(self.reach * ((mean_T - potential.v_th).square() + var_T).sqrt().float())


MINE = Method(
    name="mine",
    neuron=PLIF,
    width=DistanceWidth,
    surrogate=Cosine(),
    options=MineOptions,
    about="by the distance of the potentials from the threshold",
)


class TwoLayersOptions(NetworkOptions):
    """What this network can be asked for besides what all can."""

    stride: int = Field(default=2, ge=1, le=4)
    """Of the second convolution."""


class TwoLayers(Network):
    """Two convolutions and the readout."""

    def __init__(self, options: TwoLayersOptions) -> None:
        super().__init__("two-layers", options)
        channels = options.channels(16)
        self.conv1 = self.conv(options.in_channels, channels)
        self.conv2 = self.conv(channels, channels, stride=options.stride)
        self.readout = Readout(channels, options.num_classes)

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """logits_TNK."""
        s_TNCHW = self.conv2(self.conv1(x_SNCHW, num_steps), num_steps)
        logits_TNK: Tensor = self.readout(s_TNCHW.mean((3, 4)))
        return logits_TNK


class StripesOptions(ConfigTable):
    """What the data set can be asked for; a run's [data] takes it."""

    noise: float = Field(default=20.0, ge=0)
    """Standard deviation of the noise on each pixel, of 255."""


SAMPLES = {"train": 400, "test": 100}
CLASSES = ("horizontal", "vertical")


def read_stripes(split: str, options: LoadOptions) -> ArraySet:
    """Noisy stripes, drawn from a fixed seed; a reader of files would look into `options.data_dir`."""
    noise = options.table.noise
    rng = np.random.default_rng(0 if split == "train" else 1)
    count = SAMPLES[split]
    y_N = rng.integers(0, 2, count)
    wave_N12 = 128 + 100 * np.sin(2 * np.pi * (np.arange(12) / 4 + rng.random((count, 1))))
    x_NHW = np.repeat(wave_N12[:, :, None], 12, axis=2)
    x_NHW[y_N == 1] = x_NHW[y_N == 1].transpose(0, 2, 1)
    noisy = (x_NHW + rng.normal(0, noise, x_NHW.shape)).clip(0, 255).astype(np.uint8)
    return ArraySet(
        name="stripes",
        split=split,
        x=noisy[..., None],
        y=y_N,
        classes=CLASSES,
        mean=STRIPES.mean,
        std=STRIPES.std,
        provenance={"source": "drawn by mpd-agl-mine", "partial": False},
    )


STRIPES = DataSet(
    name="stripes",
    title="Horizontal and vertical stripes",
    shape=(12, 12, 1),
    classes=CLASSES,
    counts=SAMPLES,
    mean=(0.5,),
    std=(0.29,),
    options=StripesOptions,
    read=read_stripes,
)


def register() -> None:
    """mpd-agl calls this once per process (see the entry point in pyproject.toml)."""
    register_surrogate(Cosine())
    register_method(MINE)
    register_model(
        "two-layers",
        TwoLayers,
        defaults={"in_channels": 1, "image_size": 12},
        about="two convolutions",
        options=TwoLayersOptions,
    )
    register_dataset(STRIPES)
