"""What is measured: the work, the network and its size, the machine's share."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import MODELS

WORKS = ("train", "infer")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What every contender of one comparison computes; checked when made."""

    work: Literal["train", "infer"] = "train"
    """`train`: forward, loss, backward, update; `infer`: evaluation mode without gradients."""
    model: str = "resnet19"
    width_mult: float = 0.125
    num_steps: int = 2
    batch: int = 100
    image_size: int = 0
    """0: the network's own."""
    method: str = "mpd-agl"
    threads: int = 2
    fresh_pages: bool = False
    """True: freed memory goes back to the system, as glibc does by default. False: every contender keeps its pages."""
    release: str = ""
    """The folder with the other installation of mpd_agl that the contender `release` runs."""

    def __post_init__(self) -> None:
        if self.work not in WORKS:
            raise unknown_name("work", self.work, WORKS)
        if self.model not in MODELS:
            raise unknown_name("model", self.model, MODELS)
        for name, least in (("num_steps", 1), ("batch", 1), ("image_size", 0), ("threads", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if not self.width_mult > 0 or not math.isfinite(self.width_mult):
            raise InputError(
                f"width_mult must be positive, got {self.width_mult}. 0.125 is an eighth of the paper's channels."
            )
        if self.work == "train" and self.batch < 2:
            raise InputError("training needs a batch of at least 2 for its batch statistics, got 1. Use --batch 2.")

    @property
    def frames(self) -> bool:
        """Whether the network takes T frames that differ (camera data) and not one image T times."""
        return bool(MODELS[self.model].defaults["in_channels"] == 2)

    @property
    def title(self) -> str:
        """The workload in one line."""
        what = "training step" if self.work == "train" else "inference"
        size = f", {self.image_size}x{self.image_size}" if self.image_size else ""
        return (
            f"{what}: {self.model}, width_mult {self.width_mult:g}, T={self.num_steps}, batch {self.batch}{size}, "
            f"float32, {self.threads} threads, {self.method}"
        )

    def to_dict(self) -> dict[str, Any]:
        """For the contenders' processes."""
        return asdict(self)

    def setting(self) -> dict[str, Any]:
        """For the record: without the folder of the machine that ran it."""
        return {k: v for k, v in asdict(self).items() if k != "release"}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read a workload back from a record."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})
