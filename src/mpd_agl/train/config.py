"""A run's complete configuration.

Names of networks, methods and data sets are checked in `resolve`, where the registries are at hand.
"""

from typing import Literal

from pydantic import Field

from mpd_agl.errors import InputError
from mpd_agl.train.tables import CheckpointConfig, ConfigTable, LoopConfig, LossConfig, OptimConfig, TrackConfig


class ModelConfig(ConfigTable):
    """The network; input size, channels and classes are the data set's."""

    name: str = "resnet19"
    """resnet19, resnet18, ms-resnet18, ms-resnet34, sew-resnet18, sew-resnet34, statten, vggsnn, vgg11, vgg13, vgg16,
    cnn8 or plain; or your own network as MODULE:FACTORY.

    That imports your module, also from the current directory, and calls the factory with those of num_classes,
    in_channels, image_size, num_steps and method that it takes: it runs your code. The other fields here are not used.
    """
    width_mult: float = Field(default=1.0, gt=0)
    """Multiplies every layer's channels."""
    depth: int = Field(default=0, ge=0)
    """Layers of a network that leaves its depth free (plain; blocks of statten); 0: the network's own."""
    num_steps: int = Field(default=2, ge=1)
    """T: timesteps; event data are cut into as many frames."""
    surrogate: str = "auto"
    """Shape of the surrogate gradient; auto: the method's own, else its usual one (mostly rectangular)."""
    v_th: float = Field(default=0.5, gt=0)
    """Firing threshold."""
    tau: float = Field(default=0.2, gt=0, lt=1)
    """Share of the potential that is kept from step to step (at the start, where it is learnt)."""
    alpha: float = Field(default=1.0, gt=0)
    """tdBN's scale."""
    norm: Literal["tdbn", "bn", "tebn", "tab", "mpbn"] = "tdbn"
    """Norm before each neuron: tdBN, plain batch norm, TEBN, TAB (both for this num_steps only), MPBN."""
    attention: Literal["none", "tcja"] = "none"
    """tcja: gates behind the last two stages of a convolutional network, for this num_steps only."""
    attention_steps: int = Field(default=0, ge=0)
    """statten: timesteps that attend to one another; 0: 2 (4 from 16 steps on), or 1 where num_steps is odd."""
    kappa: float = Field(default=1.0, gt=0)
    """The width of stbp-tdbn and trainable-decay, and where psg and asgl start; other methods compute theirs."""
    leak: Literal["two", "full"] = "two"
    """Moments of the potential that a width follows: two terms of the leak sum, as Theorem 2, or all of them."""
    gamma_start: float = Field(default=1.0, gt=0)
    """Where gamma of the norms starts."""
    detach_reset: bool = False
    """No gradient through the reset."""
    start: Literal["rest", "mp-init"] = "rest"
    """Where potentials start: at rest, or at a learnt potential per layer (MP-Init, Kook et al. 2026)."""
    init: Literal["kaiming", "pytorch"] = "kaiming"
    """Convolutions: Kaiming fan-out (the authors' code) or PyTorch's default (the paper's text)."""
    block: Literal["sew", "zheng"] = "sew"
    """ResNets: spikes added (SEW-ADD), or currents added before one neuron."""
    backend: Literal["auto", "native", "triton", "compiled", "eager"] = "auto"
    """Implementation of the fused step; auto is native on a CPU, triton on a GPU, and what works where they do not."""
    conv_impl: Literal["auto", "dense", "event"] = "auto"
    """Convolutions behind the first layer: auto (each pass in its quickest way here), dense, or event (skips zeros)."""
    ann: bool = False
    """The same architecture as an ANN: batch norm and ReLU."""
    weights: str = ""
    """Start from these weights in place of random ones: a finished run, a .safetensors file, or a trained network
    by its name or its card (its readout is drawn anew where the classes are others)."""
    recompute: bool = False
    """Less memory for more time: stages are computed again in the backward pass; the numbers stay the same."""


class DataConfig(ConfigTable):
    """The data."""

    name: str = "cifar10"
    """As `mpd-agl data list` prints it."""
    data_dir: str = ""
    """Folder with the official files, or with your own (an .npz file for `npz`); empty: cache or download."""
    download: bool = True
    """Fetch what is not there."""
    allow_partial: bool = False
    """Train on a part of the set where the whole is not there; the record says so."""
    augment: tuple[str, ...] = ()
    """Steps of the augmentation in order (crop=4 flip autoaugment=cifar roll=5 cutout=16), or one recipe's name."""
    train_samples: int = Field(default=0, ge=0)
    """Use only so many training samples, a fixed random choice; 0: all."""
    test_samples: int = Field(default=0, ge=0)
    """Use only so many test samples; 0: all."""
    holdout: int = Field(default=0, ge=0)
    """Hold out so many training samples, a fixed random choice, and score on them in place of the test set; 0: none."""
    drop_last: bool = False
    """Leave out an epoch's last, smaller batch."""
    split_rule: str = "per-class-90-10"
    """For sets without an official split."""
    split_seed: int = 0
    image_size: int = Field(default=0, ge=0, le=1024)
    """Own images: height and width; 0: their own, if all are equal squares of at most 64, else 32.

    Published images: a divisor of their size, to which blocks of pixels are averaged (14 for digits); 0: as they are.
    """
    colour: Literal["auto", "rgb", "grey"] = "auto"
    """Own images: auto is grey if every image is."""
    frame_size: int = Field(default=48, ge=1)
    """Events: height and width of the frames."""
    frame_slicing: Literal["count", "time"] = "count"
    """Events: slices of equally many events, or of equal duration."""
    frame_mode: Literal["count", "binary"] = "count"
    """Events: number per pixel, or whether there was any."""


class MonitorConfig(ConfigTable):
    """Looking into the layers while they learn."""

    every: int = Field(default=50, ge=0)
    """Steps between two snapshots; 0: never."""
    silent_below: float = Field(default=0.001, ge=0, le=1)
    """Warn where a layer's firing rate falls under this."""
    available_below: float = Field(default=0.05, ge=0, le=1)
    """Warn where a layer's share of gradient-available neurons falls under this."""


class RunConfig(ConfigTable):
    """Everything a run follows from."""

    method: str = "mpd-agl"
    """mpd-agl, lsg, agr, trainable-decay, stbp-tdbn, mpd-agl-exact, mpd-quantile, mpd-gain, psg, asgl, deeptage,
    ds-atgo, ds-atgo-sigma, trsg, mpr, diet, slope-schedule or s2nn."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the weights, the data's order and the augmentation."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    train: LoopConfig = LoopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()
    track: TrackConfig = TrackConfig()


FREE_ON_RESUME = (
    "model.recompute",
    "model.weights",
    "loss.teacher",
    "data.data_dir",
    "data.download",
    "train.test_batch_size",
    "train.workers",
    "checkpoint.every_steps",
    "checkpoint.every_minutes",
    "checkpoint.keep_last",
    "track.tensorboard",
    "track.wandb",
    "track.project",
)
"""Fields that a resumed run may change: the weights do not depend on them.

Of the folders that hold weights and a teacher the weights do not depend either, but on what is in them: see
`BuiltRun.digest`.
"""
ONE_PROCESS = ("ltl", "shortcut-heads", "robust")
"""Losses that look into the network or run it several times, and train in one process."""


def check_processes(config: RunConfig, count: int) -> None:
    """Refuse what only one process can run."""
    if (config.model.name == "own" or ":" in config.model.name) and count > 1:
        raise InputError(
            f"your own network {config.model.name} trains in one process, because its norms would see parts of a "
            f"batch, got {count} processes. Start one."
        )
    if config.loss.name in ONE_PROCESS and count > 1:
        raise InputError(f"loss.name {config.loss.name} trains in one process, got {count} processes. Start one.")
