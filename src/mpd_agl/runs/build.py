"""From a configuration to its parts: data, network, optimizer, loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mpd_agl import kernels
from mpd_agl.data.counter import permutation
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.data.registry import get
from mpd_agl.data.splits import split_hash
from mpd_agl.data.types import ArraySet, FrameConfig
from mpd_agl.errors import InputError
from mpd_agl.runs.config import RunConfig
from mpd_agl.runs.resolve import augment_steps
from mpd_agl.models import Network, create_model
from mpd_agl.nn import share_batch
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.ema import Ema
from mpd_agl.train.losses import build_loss
from mpd_agl.train.optim import build_optimizer
from mpd_agl.train.rng import seed_all
from mpd_agl.train.step import Stepper

_SUBSET_STREAM, _HOLDOUT_STREAM = 0x5B5E7, 0x401D


def build_data(
    config: RunConfig, split: str, *, num_steps: int | None = None, download: bool | None = None
) -> ArraySet:
    """A split (`train`, `test`, or `validation`: what is held out of the training samples) as the configuration asks for it.

    `num_steps` cuts recordings into another number of frames.
    """
    return chosen(config, load_data(config, split, num_steps=num_steps, download=download), split)


def load_data(config: RunConfig, split: str, *, num_steps: int | None = None, download: bool | None = None) -> ArraySet:
    """The whole official split that a split is chosen from."""
    d = config.data
    frames = None
    if get(d.name).kind == "events":
        frames = FrameConfig(
            num_steps=num_steps or config.model.num_steps, slicing=d.frame_slicing, mode=d.frame_mode, size=d.frame_size
        )
    return load_dataset(
        d.name,
        "test" if split == "test" else "train",
        data_dir=d.data_dir or None,
        allow_partial=d.allow_partial,
        frames=frames,
        split_rule=d.split_rule,
        seed=d.split_seed,
        download=d.download if download is None else download,
    )


def chosen(config: RunConfig, found: ArraySet, split: str) -> ArraySet:
    """The samples of a whole split that the configuration asks for."""
    d = config.data
    if split == "validation" or (split == "train" and d.holdout):
        found = hold_out(found, d.holdout, split)
    return subset(found, {"train": d.train_samples, "test": d.test_samples}.get(split, 0))


def too_large(field: str, count: int, name: str, most: int) -> InputError:
    """The error for more samples than there are."""
    return InputError(f"data.{field} is {count}, and {name} has {most}. Use at most that, or 0 for all.")


def scored_split(config: RunConfig) -> str:
    """The samples that epochs are scored on."""
    return "validation" if config.data.holdout else "test"


def hold_out(found: ArraySet, count: int, split: str) -> ArraySet:
    """`validation`: `count` of the training samples, a fixed random choice, the same for every run seed; `train`: all the others."""
    if not 0 < count < len(found):
        raise InputError(
            f"data.holdout is {count}, and {found.name} has {len(found)} training samples. Use a number between, or 0 for none."
        )
    order = permutation(0, 0, len(found), _HOLDOUT_STREAM)
    held, rest = np.sort(order[:count]), np.sort(order[count:])
    index = held if split == "validation" else rest
    provenance = {**found.provenance, "holdout": count, "holdout_hash": split_hash(held)}
    return replace(found, split=split, x=found.x[index], y=found.y[index], provenance=provenance)


def subset(found: ArraySet, count: int) -> ArraySet:
    """A fixed random choice of `count` samples, the same for every run seed; 0: all."""
    if not count:
        return found
    if count > len(found):
        raise too_large(f"{found.split}_samples", count, found.name, len(found))
    index = permutation(0, 0, len(found), _SUBSET_STREAM)[:count]
    index.sort()
    provenance = {**found.provenance, "subset": count, "subset_hash": split_hash(index)}
    return replace(found, x=found.x[index], y=found.y[index], provenance=provenance)


def build_loaders(config: RunConfig, train: ArraySet, test: ArraySet, ranks: Ranks = ALONE) -> tuple[Loader, Loader]:
    """Batches to train on and to test with: a rank's shares of them."""
    t, N = config.train, len(train)
    if t.batch_size > N:
        raise InputError(
            f"train.batch_size is {t.batch_size}, and {train.name} has {N} training samples. Use at most {N}."
        )
    if N % t.batch_size == 1 and not config.data.drop_last:
        raise InputError(
            f"{N} samples in batches of {t.batch_size} leave one alone, and batch statistics need two. "
            "Use --data.drop_last, or another --train.batch_size."
        )
    batches = Loader(
        train,
        batch_size=t.batch_size,
        seed=config.seed,
        train=True,
        augment=augment_steps(config),
        num_workers=t.workers,
        drop_last=config.data.drop_last,
        rank=ranks.rank,
        world_size=ranks.world,
        parts=t.accumulate,
    )
    return batches, build_test_loader(config, test, ranks)


def build_test_loader(config: RunConfig, test: ArraySet, ranks: Ranks = ALONE) -> Loader:
    """Batches in order, as they are."""
    return Loader(
        test,
        batch_size=min(config.train.test_batch_size, len(test)),
        seed=config.seed,
        train=False,
        num_workers=config.train.workers,
        rank=ranks.rank,
        world_size=ranks.world,
    )


def build_network(config: RunConfig, *, in_channels: int, image_size: int, num_classes: int) -> Network:
    """The network, its weights drawn from the run's seed."""
    m = config.model
    seed_all(config.seed)
    return create_model(
        m.name,
        method=config.method,
        num_steps=m.num_steps,
        width_mult=m.width_mult,
        in_channels=in_channels,
        image_size=image_size,
        num_classes=num_classes,
        surrogate=None if m.surrogate == "auto" else m.surrogate,
        v_th=m.v_th,
        tau=m.tau,
        alpha=m.alpha,
        detach_reset=m.detach_reset,
        init=m.init,
        block=m.block,
        backend=m.backend,
        conv_impl=m.conv_impl,
        ann=m.ann,
        recompute=m.recompute,
    )


def network_for(config: RunConfig, data: ArraySet) -> Network:
    """The network that fits a data set."""
    height, width, channels = data.x.shape[-3:]
    if height != width:
        raise InputError(
            f"the networks take square images, got {height} x {width} from {data.name}. Use another data set."
        )
    return build_network(config, in_channels=channels, image_size=height, num_classes=len(data.classes))


def build_stepper(config: RunConfig, net: Network, device: torch.device, ranks: Ranks = ALONE) -> Stepper:
    """Optimizer, loss and average around a network; several ranks share its batches."""
    t = config.train
    if ranks.world > 1:
        share_batch(net, kernels.Replicas())
    return Stepper(
        net,
        build_optimizer(net, config.optim),
        build_loss(config.loss),
        device=device,
        precision=t.precision,
        accumulate=t.accumulate,
        clip_norm=config.optim.clip_norm,
        ema=Ema(net, t.ema) if t.ema else None,
        ranks=ranks,
    )


def choose_device(name: str) -> torch.device:
    """`auto`: a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise InputError(
            f"train.device must be a device that works here, got {name!r} ({reason}). Use --train.device {' or '.join(here)}, or auto."
        ) from None
    return device


def set_up_torch(config: RunConfig, device: torch.device, threads: int) -> None:
    """The process's own settings: threads, determinism. `threads` 0 leaves torch's choice."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(config.train.deterministic, warn_only=device.type != "cpu")
    # filling new tensors with NaN is a pass over memory for no other result
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def backend_that_runs(config: RunConfig, device: torch.device) -> str:
    """The fused step's backend for the record; an error where the one asked for cannot run."""
    if config.model.ann:
        return "none (ANN)"
    return kernels.resolve(config.model.backend, device, torch.float32).name


def check_same_data(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue a run on other data; where the files came from does not matter."""
    for split in ("train", "test"):
        old, new = ({k: v for k, v in facts[split].items() if k != "source"} for facts in (before, now))
        if differ := sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k)):
            raise InputError(
                f"the {split} data of {now['name']} are not those that the run began with: {', '.join(differ)} changed. "
                "Resume it with the old data, or start a new run with another --name."
            )


def data_facts(train: ArraySet, test: ArraySet) -> dict[str, Any]:
    """What a record says about the data, and what `predict` needs of it."""
    return {
        "name": train.name,
        "shape": list(train.x.shape[1:]),
        "classes": list(train.classes),
        "mean": list(train.mean),
        "std": list(train.std),
        "train": {"samples": len(train), **train.provenance},
        "test": {"samples": len(test), **test.provenance},
    }
