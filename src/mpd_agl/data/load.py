"""A data set by name, ready to train on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import convert, mnist5k, registry, sources, store
from mpd_agl.data.arrays import check_array_set
from mpd_agl.data.registry import OfficialSet
from mpd_agl.data.splits import DEFAULT_RULE
from mpd_agl.data.types import SPLITS, ArraySet, DataSet, EventStream, FrameConfig, LoadOptions
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.options import ConfigTable

CAMERA_SEED = 0
"""mnist5k-dvs is one fixed data set: the seed of a run does not change it."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Reads the i-th recording of a simulated camera. It can be sent to a worker process."""

    images_NHW: NDArray[np.uint8]
    index_N: NDArray[np.int64]
    seed: int
    path: str = "saccades"
    size: int = 34

    def __call__(self, i: int) -> EventStream:
        """Record the i-th image."""
        from mpd_agl.data.dvs import simulate

        # The number among all 5,000 images, so that a recording does not depend on the split.
        index = int(self.index_N[i])
        return simulate(
            self.images_NHW[i], seed=self.seed, index=index, path=self.path, width=self.size, height=self.size
        )


def load_dataset(
    name: str | DataSet,
    split: str,
    *,
    data_dir: Path | str | None = None,
    cache_dir: Path | str | None = None,
    allow_partial: bool = False,
    frames: FrameConfig | None = None,
    split_rule: str = DEFAULT_RULE,
    seed: int = 0,
    download: bool = True,
    image_size: int = 0,
    colour: str = "auto",
    own: ConfigTable = ConfigTable(),  # noqa: B008  (frozen)
) -> ArraySet:
    """Load a split of a data set: `load_dataset("cifar10", "train")`, or of a `DataSet` object of your own.

    Files are taken from `data_dir` if given, else from the cache, the official address or a mirror, and converted
    once. Images are memory-mapped uint8 NHWC; recordings become frames NTHWC as `frames` says. `split_rule` and its
    `seed` matter only to sets without an official split, `colour` only to folders of images. `image_size` shrinks
    published images by averaging whole blocks of pixels (14 makes 14x14 of a digit's 28x28). `own` is the table
    of a set's own options (`DataSet.options`).
    """
    spec = registry.get(name) if isinstance(name, str) else name
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    options = LoadOptions(
        data_dir=None if data_dir is None else Path(data_dir).expanduser(),
        cache_dir=None if cache_dir is None else Path(cache_dir).expanduser(),
        allow_partial=allow_partial,
        frames=frames or FrameConfig(),
        split_rule=split_rule,
        split_seed=seed,
        download=download,
        image_size=image_size,
        colour=colour,
        own=own,
    )
    return check_array_set(spec.load(split, options))


def load_official(spec: OfficialSet, split: str, options: LoadOptions) -> ArraySet:
    """Load a split of a published data set."""
    return (_images if spec.kind == "images" else _events)(spec, split, options)


def _images(spec: OfficialSet, split: str, options: LoadOptions) -> ArraySet:
    provenance: dict[str, Any]
    if spec.reader == "mnist5k":
        index = mnist5k.split_index(split)
        x_NHWC, y_N, classes = mnist5k.images()[index][..., None], mnist5k.labels()[index], spec.classes
        provenance = {"source": "embedded", "partial": False, "sha256": spec.sha256[split]}
    else:
        found = convert.obtain_images(spec, options)
        stored = store.open_split(found.place, split)
        x_NHWC, y_N, classes = stored.x_NHWC, stored.y_N, tuple(stored.header["classes"])
        provenance = {**found.provenance(), "sha256": stored.header["sha256"]}
    if options.image_size not in (0, spec.shape[0]):
        x_NHWC = shrink(x_NHWC, options.image_size, spec.name)
        provenance |= {"image_size": options.image_size}
    return ArraySet(
        name=spec.name,
        split=split,
        x=x_NHWC,
        y=y_N,
        classes=classes,
        mean=spec.mean,
        std=spec.std,
        provenance=provenance,
    )


def shrink(x_NHWC: NDArray[np.uint8], size: int, name: str) -> NDArray[np.uint8]:
    """Images of size x size: the mean of each block of pixels, halves rounded up. Mean and std stay the set's own.

    >>> shrink(np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1), 2, "tiny")[0, :, :, 0]
    array([[ 3,  5],
           [11, 13]], dtype=uint8)
    """
    N, H, W, C = x_NHWC.shape
    if size > H or H % size or H != W:
        fits = [str(n) for n in range(4, H) if H % n == 0]
        raise InputError(
            f"data.image_size shrinks images by whole blocks of pixels, got {size} for {name}'s {H} x {W}. "
            f"Use {', '.join(fits)}, or 0 for the images as they are."
        )
    b = H // size
    out_NHWC = np.empty((N, size, size, C), np.uint8)
    for i in range(0, N, 1000):  # a part at a time: large sets are memory-mapped
        part = x_NHWC[i : i + 1000]
        sums = part.reshape(len(part), size, b, size, b, C).sum((2, 4), dtype=np.uint32)
        out_NHWC[i : i + 1000] = (sums + b * b // 2) // (b * b)
    return out_NHWC


def _events(spec: OfficialSet, split: str, options: LoadOptions) -> ArraySet:
    from mpd_agl.data.framing import build_frames, frames_sha256

    read: Any
    if spec.reader == "mnist5k-dvs":
        index_N = mnist5k.split_index(split)
        read = Simulated(images_NHW=mnist5k.images()[index_N], index_N=index_N, seed=CAMERA_SEED)
        y_N, key = mnist5k.labels()[index_N], f"{spec.name}-{CAMERA_SEED}-{split}"
        provenance = {
            "source": "embedded, simulated camera",
            "partial": False,
            "camera_seed": CAMERA_SEED,
            "split_rule": "official",
        }
    else:
        found, splits = convert.obtain_recordings(spec, options)
        provenance = found.provenance()
        if "all" in splits:
            from mpd_agl.data.splits import split_indices

            index_N, split_hash = split_indices(
                splits["all"].y_N, options.split_rule, split=split, seed=options.split_seed
            )
            read = splits["all"].take(index_N)
            # Frames are kept per split, so that each is one memory-mapped array.
            key = f"{found.key}-{split}-{split_hash[:16]}"
            provenance |= {
                "split_rule": options.split_rule,
                "split_seed": options.split_seed,
                "split_hash": split_hash,
            }
        else:
            read, key = splits[split], f"{found.key}-{split}"
            provenance |= {"split_rule": "official"}
        y_N = read.y_N
    frames_dir = sources.cache_root(options.cache_dir) / "frames"
    x_NTHWC = build_frames(read, len(y_N), options.frames, frames_dir, key=key)
    provenance |= {"frames": asdict(options.frames), "frames_sha256": frames_sha256(x_NTHWC)}
    return ArraySet(
        name=spec.name,
        split=split,
        x=x_NTHWC,
        y=y_N,
        classes=spec.classes,
        mean=spec.mean,
        std=spec.std,
        provenance=provenance,
    )
