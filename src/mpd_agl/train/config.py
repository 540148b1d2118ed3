"""A run's configuration: its tables, and the registries whose entries add options of their own to them.

0 means "off" where a number is optional, so that TOML can say all of it.
"""

from typing import Literal

from pydantic import Field

from mpd_agl.data.options import DataOptions
from mpd_agl.models.options import ModelOptions
from mpd_agl.options import ConfigTable

OWN = "own"
"""The name of a network, a method or data that exist only in the program that called `mpd_agl.fit`."""


def is_own(name: str) -> bool:
    """Whether a configuration's model.name is a network of the user's own."""
    return name == OWN or ":" in name


class ModelConfig(ModelOptions):
    """The network; input size, channels and classes are the data set's. Its method's options belong here, too."""

    name: str = "resnet19"
    """A network of the package or of a plugin, listed below; or your own network as MODULE:FACTORY.

    That imports your module, also from the current directory, and calls the factory with those of num_classes,
    in_channels, image_size, num_steps and method that it takes: it runs your code. The other fields here are not used.
    """
    weights: str = ""
    """Start from these weights in place of random ones: a finished run, a .safetensors file, or a trained network
    by its name or its card (its readout is initialised again where the classes are others)."""


class DataConfig(DataOptions):
    """The data."""

    name: str = "cifar10"
    """As `mpd-agl data list` prints it."""
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


class OptimConfig(ConfigTable):
    """Optimizer and schedule."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    """Learning rate of the first epoch."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """SGD's momentum."""
    nesterov: bool = False
    """SGD with Nesterov's momentum."""
    weight_decay: float = Field(default=1e-4, ge=0)
    decay_on: Literal["all", "weights"] = "all"
    """Weight decay on all parameters, as the authors do, or only on those with two dimensions or more."""
    schedule: Literal["cosine", "cosine-steps", "constant"] = "cosine"
    """`cosine`: constant in each epoch, `lr/2 (1 + cos(pi e/E))` as the authors do; `cosine-steps` falls at every step
    and would be 0 at the one after the last, which runs of few epochs need.
    """
    warmup_epochs: int = Field(default=0, ge=0)
    """Epochs over which the rate rises linearly to `lr`."""
    clip_norm: float = Field(default=0.0, ge=0)
    """Largest norm of the gradient; 0: no clipping."""


class LossConfig(ConfigTable):
    """What is minimised."""

    name: str = "ce"
    """Listed below; without options of its own it is the cross-entropy of the mean output."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class LoopConfig(ConfigTable):
    """How long, how large, on what."""

    epochs: int = Field(default=150, ge=1)
    batch_size: int = Field(default=100, ge=2)
    """Samples per optimizer step."""
    accumulate: int = Field(default=1, ge=1)
    """Parts a batch is cut into to save memory; gradients are summed, batch statistics are of the part."""
    test_batch_size: int = Field(default=200, ge=1)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Autocast; float16 scales the loss and needs a GPU."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights that is then evaluated and kept; 0: none."""
    device: str = "auto"
    """`auto`: a GPU where there is one; or cpu, cuda, cuda:1."""
    deterministic: bool = True
    """The same bits at every run (on a GPU as far as its kernels allow)."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0: as many as torch takes. A resumed run keeps its number."""
    workers: int = Field(default=1, ge=0, le=16)
    """Threads that make batches ahead."""


class CheckpointConfig(ConfigTable):
    """When a run is saved. Every epoch's end is; these are further times."""

    every_steps: int = Field(default=0, ge=0)
    """Also after so many steps; 0: no."""
    every_minutes: float = Field(default=10.0, ge=0)
    """Also after so many minutes; 0: no."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept, besides the best epoch's."""


class MonitorConfig(ConfigTable):
    """Looking into the layers while they learn."""

    every: int = Field(default=50, ge=0)
    """Steps between two snapshots; 0: never."""


class TrackConfig(ConfigTable):
    """Where else the metrics go. A tracker that fails is dropped, and the run continues."""

    tensorboard: bool = False
    wandb: bool = False
    """Its project is the environment's WANDB_PROJECT, or mpd-agl."""


class RunConfig(ConfigTable):
    """Everything a run follows from."""

    method: str = "mpd-agl"
    """The neuron and its width rule, listed below; a method's options belong to [model]."""
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
)
"""Fields that a resumed run may change: the weights do not depend on them.

Of the folders that hold weights and a teacher the weights do not depend either, but on what is in them: see
`BuiltRun.digest`.
"""
