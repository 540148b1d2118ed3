"""The options that belong to a data set: one small table per kind of set, named in its registry entry.

`load_dataset(name, split, image_size=14)` and `--data.image_size 14` are checked against the table of that set alone.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mpd_agl.data.splits import DEFAULT_RULE, check_rule
from mpd_agl.data.types import LARGEST_FRAME, FrameConfig, Mode, Slicing
from mpd_agl.options import ConfigTable


class DataOptions(ConfigTable):
    """What every data set can be asked for; a data set may have further options of its own."""

    data_dir: str = ""
    """Folder with the official files, or with your own (an .npz file for `npz`); empty: cache or download."""
    download: bool = True
    """Fetch what is not there."""
    allow_partial: bool = False
    """Train on a part of the set where the whole is not there; the record says so."""


class ImageOptions(ConfigTable):
    """Published images."""

    image_size: int = Field(default=0, ge=0, le=1024)
    """A divisor of the images' size, to which blocks of pixels are averaged (14 for digits); 0: unchanged."""


class FrameOptions(ConfigTable):
    """Recordings of an event camera, which become frames."""

    frame_size: int = Field(default=48, ge=1, le=LARGEST_FRAME)
    """Height and width of the frames."""
    frame_slicing: Slicing = "count"
    """Slices of equally many events, or of equal duration."""
    frame_mode: Mode = "count"
    """Number of events per pixel, or whether there was any."""

    def frames(self, num_steps: int) -> FrameConfig:
        """How recordings become `num_steps` frames."""
        return FrameConfig(num_steps=num_steps, slicing=self.frame_slicing, mode=self.frame_mode, size=self.frame_size)


class SplitOptions(ConfigTable):
    """Samples without an official split."""

    split_rule: Annotated[str, AfterValidator(check_rule)] = DEFAULT_RULE
    """Which samples train and which test (see `splits`)."""
    split_seed: int = 0
    """Of the rules that draw."""


class FolderOptions(SplitOptions):
    """Images in class folders."""

    image_size: int = Field(default=0, ge=0, le=1024)
    """Height and width; 0: their own, if all are equal squares of at most 64, else 32."""
    colour: Literal["auto", "rgb", "grey"] = "auto"
    """auto: grey if every image is."""


class SplitFrameOptions(SplitOptions, FrameOptions):
    """Recordings without an official split."""
