"""The loop's settings: typed, frozen, checked when made.

0 stands for "off" where a number is optional, so that TOML can say all of it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ConfigTable(BaseModel):
    """A table of the configuration: frozen, no unknown fields, finite numbers. Docstrings of fields are the help."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


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

    name: Literal["ce", "tet", "distill", "ltl", "shortcut-heads", "robust"] = "ce"
    """`ce`: cross-entropy of the mean output; `tet`: of each timestep's output (Deng et al. 2022).

    Beside `ce`: `distill` follows a teacher's outputs, `ltl` its layers (Yang et al. 2022), `shortcut-heads` adds heads
    on inner layers (ours), `robust` trains against RFGSM (Ozdenizci et al. 2024).
    """
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    tet_lambda: float = Field(default=1e-3, ge=0, le=1)
    """Share of TET's second term, MSE of the outputs against `tet_target`."""
    tet_target: float = 1.0
    teacher: str = ""
    """distill, ltl: the run of the same network as an ANN."""
    distill_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the teacher's term."""
    distill_temperature: float = Field(default=3.0, gt=0)
    """What both outputs are divided by."""
    ltl_weight: float = Field(default=1.0, ge=0)
    """Weight of each layer's term."""
    head_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the heads at the start; it falls to 0."""
    robust_eps: float = Field(default=2 / 255, gt=0, le=1)
    """Largest change of a pixel (0 to 1)."""
    robust_step: float = Field(default=1 / 255, gt=0, le=1)
    """Its random part."""
    robust_weight: float = Field(default=2.0, ge=0)
    """Weight of the KL divergence between attacked and clean outputs."""


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
    """Newest checkpoints that are kept, beside the best epoch's."""


class TrackConfig(ConfigTable):
    """Where else the metrics go. A tracker that fails is dropped, and the run goes on."""

    tensorboard: bool = False
    wandb: bool = False
    project: str = "mpd-agl"
    """W&B's project."""
