"""What data is once it is read, and what a data set must give.

Shapes: N samples, T frames, H height, W width, C channels, E events. Arrays are channels-last on disk, so a batch
becomes a channels_last tensor without a copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from mpd_agl.data.splits import DEFAULT_RULE, check_rule
from mpd_agl.options import ConfigTable

SPLITS = ("train", "test")


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
    slicing: str = "count"
    """`count`: slices of equally many events; `time`: slices of equal duration."""
    mode: str = "count"
    """`count`: events per pixel (saturating at 255); `binary`: 1 where there was any."""
    size: int = 48
    """Height and width of the frames after resizing."""


class DataOptions(ConfigTable):
    """What every data set can be asked for; a data set may have further options of its own."""

    data_dir: str = ""
    """Folder with the official files, or with your own (an .npz file for `npz`); empty: cache or download."""
    download: bool = True
    """Fetch what is not there."""
    allow_partial: bool = False
    """Train on a part of the set where the whole is not there; the record says so."""


class EventOptions(ConfigTable):
    """Options of event data."""

    frame_size: int = Field(default=48, ge=1)
    """Events: height and width of the frames."""
    frame_slicing: Literal["count", "time"] = "count"
    """Events: slices of equally many events, or of equal duration."""
    frame_mode: Literal["count", "binary"] = "count"
    """Events: number per pixel, or whether there was any."""


class SplitOptions(ConfigTable):
    """Options of a set without an official split."""

    split_rule: Annotated[str, AfterValidator(check_rule)] = DEFAULT_RULE
    """Which samples train and which test: per-class-90-10, first-90-per-class and others of `data.splits`."""
    split_seed: int = 0
    """Of the rules that draw."""


class ImageOptions(ConfigTable):
    """Options of images."""

    image_size: int = Field(default=0, ge=0, le=1024)
    """Own images: height and width; 0: their own, if all are equal squares of at most 64, else 32.

    Published images: a divisor of their size, to which blocks of pixels are averaged (14 for digits); 0: unchanged.
    """


class FolderOptions(ImageOptions, SplitOptions):
    """Options of a folder of images."""

    colour: Literal["auto", "rgb", "grey"] = "auto"
    """Own images: auto is grey if every image is."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a caller may ask of a data set besides the split. A set follows the fields that concern it."""

    data_dir: Path | None = None
    """The user's folder or file; None means the cache or a download."""
    cache_dir: Path | None = None
    """Where converted sets are kept; None means the default place (`sources.cache_root`)."""
    allow_partial: bool = False
    """Take a part of the official set as well."""
    frames: FrameConfig = FrameConfig()
    """How recordings become frames."""
    split_rule: str = "per-class-90-10"
    """Which samples train and which test, where the set itself does not say (see `splits`)."""
    split_seed: int = 0
    download: bool = True
    """Fetch what is not there."""
    image_size: int = 0
    """Height and width of the images of a folder; 0: their own if all are equal squares of at most 64, else 32.

    Published images are shrunk to it by averaging whole blocks of pixels; 0: as they are.
    """
    colour: str = "auto"
    """`rgb`, `grey`, or `auto`: grey if every image of a folder is."""
    own: ConfigTable = field(default_factory=ConfigTable)
    """The data set's own options, a `DataSet.options`."""


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
    """Height, width, channels of an image, or of the sensor with two polarities; zeros where only the files tell."""
    classes: tuple[str, ...] = ()
    """Empty where the names are read from the files."""
    num_classes: int = 0
    """0: as many as `classes`."""
    counts: dict[str, int] = field(default_factory=dict)
    """Samples per split; `all` where there is no official split; empty where only the files tell."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Per channel, of x/255; empty where they are measured on the training split."""
    licence: str = ""
    options: type[ConfigTable] = ConfigTable
    """The set's own options, which a run's `[data]` takes; its reader finds them in `LoadOptions.own`."""
    read: Callable[[str, LoadOptions], ArraySet] | None = None
    """Gives a split (`train` or `test`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "num_classes", self.num_classes or len(self.classes))

    def load(self, split: str, options: LoadOptions) -> ArraySet:
        """Read a split."""
        if self.read is None:
            raise TypeError(f"data set {self.name!r} needs a `read` function or a `load` method of its own")
        return self.read(split, options)
