"""What data is once it is read, and what a data set must give.

Shapes: N samples, T frames, H height, W width, C channels, E events. Arrays are channels-last on disk, so a batch
becomes a channels_last tensor without a copy.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mpd_agl.errors import InputError, unknown_name

if TYPE_CHECKING:
    from mpd_agl.options import ConfigTable

SPLITS = ("train", "test")
Slicing = Literal["count", "time"]
Mode = Literal["count", "binary"]
LARGEST_FRAME = 4096


def check_labels(y: Any, count: int, name: str, num_classes: int | None = None) -> NDArray[np.int64]:
    """Labels as int64: one integer per sample, from 0 to `num_classes` - 1. Every label passes here, and only here."""
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        raise InputError(
            f"the labels of {name} must be one integer per sample, {count:,} in all, got {labels.dtype} of shape "
            f"{labels.shape}. Give the class of each sample as a number from 0 on."
        )
    if num_classes is not None and count and not 0 <= labels.min() <= labels.max() < num_classes:
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(f"{name} holds the label {bad}, outside 0..{num_classes - 1}. Correct the labels.")
    return labels.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class ArraySet:
    """One split of a data set, ready to train on: `x` is uint8 images_NHWC or event frames_NTHWC, often memory-mapped.

    Samples of any other shape are float32 in a row each, (N, 1, F, 1); `sample_shape` says how they are unfolded.

    `provenance` holds what a run record must say about the data: source, sha256 of the decoded pixels, whether the set
    is partial and, for events, frame mode, slicing, split rule and split hash.
    """

    name: str
    split: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x, what = self.x, f"data set {self.name!r}"
        if self.sample_shape is not None:
            if x.dtype != np.float32 or x.shape[1:] != (1, math.prod(self.sample_shape), 1):
                raise InputError(
                    f"{what} needs float32 rows of {self.sample_shape}, got {x.dtype} {x.shape}. Use as_array_set."
                )
        elif x.ndim not in (4, 5) or x.dtype != np.uint8:
            raise InputError(
                f"{what} needs uint8 (N, H, W, C) or (N, T, H, W, C), got {x.dtype} {x.shape}. Use as_array_set."
            )
        C = x.shape[-1]
        if len(self.mean) != C or len(self.std) != C or min(self.std) <= 0:
            raise InputError(
                f"{what} has {C} channels, got mean {self.mean} and std {self.std}; give one of each per channel, std "
                "above 0."
            )
        object.__setattr__(self, "y", check_labels(self.y, len(x), what, len(self.classes)))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of a sample that is no image; None for images and frames."""
        found = self.provenance.get("sample_shape")
        return None if found is None else tuple(found)


@dataclass(frozen=True, kw_only=True)
class EventStream:
    """One event-camera recording, in time order: microseconds, column, row (0 at the top), polarity (1 is ON)."""

    t_E: NDArray[np.int64]
    x_E: NDArray[np.uint16]
    y_E: NDArray[np.uint16]
    p_E: NDArray[np.uint8]
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.t_E)


@dataclass(frozen=True, kw_only=True)
class FrameConfig:
    """How events become frames; every field is part of a result's provenance."""

    num_steps: int = 10
    """T: number of frames."""
    slicing: Slicing = "count"
    """`count`: slices of equally many events; `time`: slices of equal duration."""
    mode: Mode = "count"
    """`count`: events per pixel (saturating at 255); `binary`: 1 where there was any."""
    size: int = 48
    """Height and width of the frames after resizing."""

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise InputError(f"num_steps must be at least 1, got {self.num_steps}; use 10, as the paper does.")
        if not 1 <= self.size <= LARGEST_FRAME:
            raise InputError(
                f"the frame size must be from 1 to {LARGEST_FRAME}, got {self.size}; use 48, as in the paper."
            )
        for what, value, known in (("slicing", self.slicing, Slicing), ("frame mode", self.mode, Mode)):
            if value not in get_args(known):
                raise unknown_name(what, value, get_args(known))


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a caller may ask of any data set besides the split, and the set's own options."""

    data_dir: Path | None = None
    """The user's folder or file; None means the cache or a download."""
    cache_dir: Path | None = None
    """Where converted sets are kept; None means the default place (`sources.cache_root`)."""
    allow_partial: bool = False
    """Take a part of the official set as well."""
    download: bool = True
    """Fetch what is not there."""
    frames: FrameConfig = FrameConfig()
    """How recordings become frames."""
    table: Any = None
    """The set's own options: an instance of `DataSet.options`."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: what is known before a file is read, and how to read it.

    A data set of your own is one of these with a `read` function, or a subclass with its own `load`. Pass it to
    `load_dataset`, or register it under its name with `register_dataset`.

        def read(split: str, options: LoadOptions) -> ArraySet:
            train = as_array_set(my_files("train"), name="mine", split="train", classes=("cat", "dog"))
            if split == "train":
                return train
            return as_array_set(my_files(split), name="mine", split=split, like=train)

        register_dataset(DataSet(name="mine", classes=("cat", "dog"), shape=(32, 32, 3), read=read))
    """

    name: str
    title: str = ""
    """What people call it; empty: the name."""
    kind: str = "images"
    """`images`, or `events` for recordings that become frames."""
    shape: tuple[int, int, int] = (0, 0, 0)
    """Height, width, channels of an image, or of the sensor with two polarities; zeros where only the files say."""
    classes: tuple[str, ...] = ()
    """Empty where the names are read from the files."""
    num_classes: int = 0
    """0: as many as `classes`."""
    counts: dict[str, int] = field(default_factory=dict)
    """Samples per split; `all` where there is no official split; empty where only the files say."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Per channel, of x/255; empty where they are measured on the training split."""
    licence: str = ""
    options: "type[ConfigTable] | None" = None
    """The table of the set's own options, which `read` finds in `LoadOptions.table` (see `data.options`)."""
    read: Callable[[str, LoadOptions], ArraySet] | None = None
    """Gives a split (`train` or `test`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "num_classes", self.num_classes or len(self.classes))

    @property
    def option_names(self) -> set[str]:
        """The names of the set's own options."""
        return set(self.options.model_fields) if self.options else set()

    def table(self, given: Mapping[str, Any]) -> "ConfigTable | None":
        """The set's own options, checked; defaults where nothing is given."""
        if unknown := sorted(given.keys() - self.option_names):
            raise unknown_name(f"option of data set {self.name!r}", unknown[0], self.option_names)
        try:
            return self.options(**given) if self.options else None
        except ValueError as error:  # pydantic's ValidationError; its first line counts the mistakes
            reason = " ".join(line.strip() for line in str(error).splitlines()[1:3])
            raise InputError(f"data set {self.name!r}: {reason}. See mpd-agl train --help.") from error

    def load_options(
        self, own: Mapping[str, Any], *, num_steps: int = 10, frames: FrameConfig | None = None, **common: Any
    ) -> LoadOptions:
        """What a caller asks for, with the set's own options checked."""
        table: Any = self.table(own)
        if frames is None:
            is_framed = "frame_size" in self.option_names
            frames = table.frames(num_steps) if is_framed else FrameConfig(num_steps=num_steps)
        places = {k: None if v is None else Path(v).expanduser() for k, v in common.items() if k.endswith("_dir")}
        return LoadOptions(frames=frames, table=table, **{**common, **places})

    def array_set(self, split: str, x: NDArray[Any], y: Any, provenance: dict[str, Any]) -> ArraySet:
        """A split with the set's classes, mean and std."""
        return ArraySet(
            name=self.name,
            split=split,
            x=x,
            y=y,
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            provenance=provenance,
        )

    def load(self, split: str, options: LoadOptions) -> ArraySet:
        """Read a split."""
        if self.read is None:
            raise TypeError(f"data set {self.name!r} needs a `read` function or a `load` method of its own")
        return self.read(split, options)
