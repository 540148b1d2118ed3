"""`mpd_agl.fit`: train a network of your own on data of your own, with everything that a run of `mpd-agl train` has."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mpd_agl.adaptation.find import to_rest
from mpd_agl.data.arrays import as_array_set
from mpd_agl.data.store import blocks
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.models import load_weights
from mpd_agl.records import RunRecord
from mpd_agl.train.build import Sets, build_data, chosen
from mpd_agl.train.config import OWN, RunConfig
from mpd_agl.train.console import build_display
from mpd_agl.train.own_network import Forward, OwnNetwork
from mpd_agl.train.resolve import Table, merge, nest, resolve
from mpd_agl.train.rng import restore_rng, rng_state
from mpd_agl.train.runfolder import MARK, check_name
from mpd_agl.train.training import resume as resume_run
from mpd_agl.train.training import start

USUAL_LR = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}


def fit(
    net: nn.Module | str,
    train: Any,
    test: Any = None,
    *,
    epochs: int,
    batch_size: int | None = None,
    lr: float | None = None,
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd",
    name: str | None = None,
    runs_dir: Path | str = "runs",
    resume: bool = False,
    overwrite: bool = False,
    forward: Forward | None = None,
    seed: int = 0,
    monitor: int = 50,
    augment: Sequence[str] = (),
    holdout: int = 0,
    classes: Sequence[str] | None = None,
    as_is: bool = False,
    device: str = "auto",
    quiet: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Train any `nn.Module` as a run: folder, checkpoints, metrics, record, monitor; `mpd-agl report RUN` reads it.

        record = mpd_agl.fit(net, (x_train, y_train), (x_test, y_test), epochs=10, optimizer="adamw", name="first")
        print(record.final["test_accuracy"])

    `net` is a network of yours, of SpikingJelly, snnTorch or this package, or the name `module:factory` of a function
    that builds one. It gets float32 images (N, C, H, W), normalised, or frames (T, N, C, H, W), or samples of another
    shape as they are, (N, ...). It returns logits (N, K) or (T, N, K), whose mean over T is the prediction; of a tuple
    the first is taken. `forward(net, x)` replaces `net(x)`, for example to loop over time. Neurons are set to rest
    before every pass. The network is trained in place; at the end it holds the result, the weights of
    `model.safetensors`, and is in evaluation mode.

    `train` and `test` are pairs (x, y) of arrays or tensors, torch `Dataset`s (read through once, so leave random
    transforms to `augment`) or `ArraySet`s. `train` alone may be a folder of class folders with images, an .npz file,
    or the name of a data set. Pixels are uint8, or floats from 0 to 1, which are kept as uint8; labels are integers.
    Samples that can be neither images nor frames, as (N, F), are taken as they are; with `as_is` all are: any numbers
    in any shape, neither rounded nor normalised. `batch_size` is 100, or all samples where there are fewer. Without
    `test`, `holdout` training samples are kept back and scored.

    `lr` follows a cosine to 0; its default is 0.1 for SGD, else 0.001. `monitor` is the number of steps between two
    looks into the spiking layers, 0 for none. `settings` sets any other field of the configuration by its dotted name,
    for example `{"optim.weight_decay": 0, "loss.name": "tet", "train.ema": 0.99, "checkpoint.every_steps": 100}`;
    `mpd-agl train --help` lists them.

    With `resume=True` and the same arguments, a run that was stopped or killed ends with the bytes of one that was not;
    a finished one is only read; where there is none, one begins. Ctrl-C saves, and raises `Stopped`.
    """
    settings = dict(settings or {})
    config = resolve(_table(net, train, settings, locals()))
    path = Path(runs_dir).expanduser() / check_name(name or _usual_name(net, config))
    continued = resume and (path / MARK).is_file()
    own = _own(net, forward)
    if as_is and config.data.name != OWN:
        raise InputError(f"as_is is for arrays and Datasets, got {train}, which holds images. Leave it out.")
    display = build_display("quiet" if quiet else "auto")
    with process_as_before():
        sets = None if config.data.name != OWN else _sets(config, train, test, classes, as_is)
        if batch_size is None and "train.batch_size" not in settings:
            train_set = build_data(config, "train") if sets is None else sets[0]
            config = _fitting_batch(config, len(train_set))
        if sets is None and (test is not None or classes is not None):
            raise InputError(
                f"{train} holds both training and test samples and their classes, got `test` or `classes` as well. "
                "Leave them out."
            )
        if continued:
            record = resume_run(path, config.model_dump(mode="json"), display, sets=sets, own=own)
        else:
            record = start(config, path, display, overwrite=overwrite, sets=sets, own=own)
    if own is not None:
        load_weights(own, path / "model.safetensors")
        to_rest(own.net)
        own.net.eval()
    return record


def _table(net: nn.Module | str, train: Any, settings: dict[str, Any], given: Mapping[str, Any]) -> Table:
    """The arguments of `fit` as a configuration."""
    if given["optimizer"] not in USUAL_LR:
        raise InputError(f"optimizer must be sgd, adam or adamw, got {given['optimizer']!r}.")
    lr = given["lr"]
    table: Table = {
        "seed": given["seed"],
        "model": {"name": net if isinstance(net, str) else OWN},
        "data": {"name": OWN, "augment": list(given["augment"]), "holdout": given["holdout"]},
        "optim": {"name": given["optimizer"], "lr": USUAL_LR[given["optimizer"]] if lr is None else lr},
        "train": {"epochs": given["epochs"], "batch_size": given["batch_size"] or 100, "device": given["device"]},
        "monitor": {"every": given["monitor"]},
    }
    if not isinstance(net, str):
        table["method"] = OWN
    if isinstance(train, str | Path):
        table["data"] |= _data_at(train)
    return merge(table, nest(settings))


def _data_at(place: str | Path) -> Table:
    """The data set that a path, or a data set's name, means."""
    from mpd_agl.data.registry import DATASETS

    path = Path(place).expanduser()
    if path.is_dir():
        return {"name": "folder", "data_dir": str(place)}
    if path.suffix.lower() == ".npz":
        return {"name": "npz", "data_dir": str(place)}
    if str(place) in DATASETS:
        return {"name": str(place)}
    raise InputError(
        f"there is no folder, .npz file or data set {str(place)!r}. Give a folder with a folder of images per class."
    )


def _usual_name(net: nn.Module | str, config: RunConfig) -> str:
    kind = net if isinstance(net, str) else type(net).__name__
    return (
        re.sub(r"[^A-Za-z0-9.]+", ".", f"{config.data.name}-{kind}".replace("-", "_")).strip(".") + f"-s{config.seed}"
    )


def _own(net: Any, forward: Forward | None) -> OwnNetwork | None:
    """The network as the loop takes it; None where the configuration names it."""
    if isinstance(net, str):
        if forward is not None:
            raise InputError(f"forward goes with a network object, got the name {net!r}. Let the factory do its work.")
        return None
    if not isinstance(net, nn.Module):
        raise InputError(f"fit trains a torch.nn.Module or 'module:factory', got {type(net).__name__}. Give a network.")
    if forward is not None and not callable(forward):
        raise InputError(f"forward must be a function of (net, x), got {type(forward).__name__}.")
    return OwnNetwork(net, forward=forward)


def _fitting_batch(config: RunConfig, samples: int) -> RunConfig:
    """The usual batch, smaller where there are fewer samples or one would be left alone."""
    size = min(config.train.batch_size, samples)
    if samples % size == 1 and size > 2 and not config.data.drop_last:
        size -= 1
    return config.model_copy(update={"train": config.train.model_copy(update={"batch_size": size})})


def _sets(config: RunConfig, train: Any, test: Any, classes: Sequence[str] | None, as_is: bool) -> Sets:
    """The samples to train on, and those to be scored on."""
    if (test is None) == (config.data.holdout == 0):
        raise InputError(
            "a run is scored on test data or on held-out training samples, "
            f"got {'both' if test is not None else 'none'}"
            ". Give fit `test`, or holdout=500."
        )
    whole = _array_set(train, "train", classes=classes, as_is=as_is or None)
    if test is None:
        return chosen(config, whole, "train"), chosen(config, whole, "validation")
    other = _array_set(test, "test", like=whole)
    if other.x.shape[1:] != whole.x.shape[1:] or other.classes != whole.classes:
        raise InputError(
            f"the test samples have the shape {other.x.shape[1:]} and {len(other.classes)} classes, "
            "the training samples "
            f"{whole.x.shape[1:]} and {len(whole.classes)}. Give both the same shape and classes."
        )
    return chosen(config, whole, "train"), chosen(config, other, "test")


def _array_set(data: Any, split: str, **options: Any) -> ArraySet:
    if isinstance(data, torch.utils.data.DataLoader):
        raise InputError(
            "fit makes the batches itself, got a DataLoader. Give its dataset, and augment=(...) to vary it."
        )
    if isinstance(data, str | Path):
        raise InputError(
            f"`{split}` must be arrays or a Dataset here, got the path {data}. Give a path as `train` alone."
        )
    data = tuple(data) if isinstance(data, list) and len(data) == 2 else data
    found = as_array_set(data, name=OWN, split=split, **options)
    if isinstance(data, ArraySet):  # made by anyone: the record must know which samples these are
        digest = hashlib.sha256()
        for block in blocks(found.x):
            digest.update(block.tobytes())
        digest.update(found.y.astype("<i8").tobytes())
        found = replace(found, provenance={**found.provenance, "arrays_sha256": digest.hexdigest()})
    return found


@contextmanager
def process_as_before() -> Iterator[None]:
    """A run sets threads, determinism and random numbers for its process: give the program its own back."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    random = rng_state()
    try:
        yield
    finally:
        restore_rng(random)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
