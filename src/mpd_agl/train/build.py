"""From a configuration to everything that it asks for: data, batches, network, optimizer, loss, built once."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from mpd_agl import ops, records
from mpd_agl.data.counter import permutation
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.data.options import SplitOptions
from mpd_agl.data.splits import split_hash, split_indices
from mpd_agl.data.types import ArraySet
from mpd_agl.diagnosis import count_operations
from mpd_agl.errors import InputError
from mpd_agl.models import Network, create_model
from mpd_agl.nn import share_batch
from mpd_agl.options import flatten, part
from mpd_agl.train.config import FREE_ON_RESUME, OWN, RunConfig, is_own
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.evaluate import Batches
from mpd_agl.train.objective import Objective, build_objective, get_objective
from mpd_agl.train.optim import build_optimizer
from mpd_agl.train.own_network import OPTIONS, OwnNetwork, call_factory, check_network
from mpd_agl.train.resolve import augment_steps, data_set, rule_facts
from mpd_agl.train.rng import seed_all
from mpd_agl.train.start_from import start_from
from mpd_agl.train.step import Ema, Stepper

_SUBSET_STREAM, _HOLDOUT_STREAM = 0x5B5E7, 0x401D
Sets = tuple[ArraySet, ArraySet]
"""The samples to train on, and those to be scored on."""


@dataclass(frozen=True, kw_only=True)
class BuiltRun:
    """A run that can begin: its configuration, and everything that it asks for. The loop takes it as it is."""

    config: RunConfig
    backend: str
    """The backend of the fused step that runs here."""
    sets: Sets
    train: Batches
    test: Batches
    net: Network | OwnNetwork
    stepper: Stepper
    """Optimizer, loss and average around the network, on its device and with its ranks."""
    started: dict[str, str] = field(default_factory=dict)
    """The weights that the network started from, where they were not drawn."""

    @property
    def provenance(self) -> dict[str, Any]:
        """What the result follows from besides configuration and data: the constants of the method's rule, a teacher,
        weights to start from.
        """
        return {**rule_facts(self.config), **self.started, **self.stepper.objective.facts}

    @property
    def scored(self) -> str:
        """The samples that epochs are scored on."""
        return scored_split(self.config)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a record says about the data, and what `predict` needs of it."""
        train, test = self.sets
        return {
            "name": train.name,
            "shape": list(train.x.shape[1:]),
            "classes": list(train.classes),
            "mean": list(train.mean),
            "std": list(train.std),
            "train": {"samples": len(train), **train.provenance},
            "test": {"samples": len(test), **test.provenance},
        }

    @cached_property
    def digest(self) -> str:
        """Of all that the weights follow from: configuration, backend, samples."""
        fixed = {k: v for k, v in flatten(self.config.model_dump(mode="json")).items() if k not in FREE_ON_RESUME}
        data = {split: {k: v for k, v in self.facts[split].items() if k != "source"} for split in ("train", "test")}
        own = [self.net.facts] if isinstance(self.net, OwnNetwork) else []
        own += [self.provenance] if self.provenance else []
        return hashlib.sha256(records.canonical([fixed, self.backend, data, *own])).hexdigest()

    @property
    def parameters(self) -> int:
        """How many numbers the network learns."""
        return sum(p.numel() for p in self.net.parameters())

    @cached_property
    def network(self) -> dict[str, Any]:
        """What a record says about the network."""
        if isinstance(self.net, OwnNetwork):
            return {"parameters": self.parameters, **self.net.facts, **self.provenance}
        macs = sum(layer.macs for layer in count_operations(self.net))
        return {"parameters": self.parameters, "macs_per_step": macs, **self.provenance}

    @property
    def title(self) -> str:
        """The run in one line."""
        c, m = self.config, self.config.model
        kind = "ANN" if m.ann else f"{c.method}, T={m.num_steps}"
        what = f"{m.name} x{m.width_mult:g}, {kind}"
        if isinstance(self.net, OwnNetwork):
            what = f"{self.net.title}, T={self.net.num_steps}"
        return f"{what}, {self.sets[0].name}, seed {c.seed}: {self.parameters:,} parameters, backend {self.backend}" + (
            f", scored on {c.data.holdout} held-out training samples" if c.data.holdout else ""
        )


def build_run(
    config: RunConfig,
    *,
    threads: int = 0,
    ranks: Ranks = ALONE,
    sets: Sets | None = None,
    own: OwnNetwork | None = None,
) -> BuiltRun:
    """Load the data and build all parts; bad input ends here, before the run's folder is touched.

    `sets` replaces the data set's own samples, `own` the configuration's network, `threads` its threads.
    """
    ops.reuse_pages()
    check_processes(config, ranks.world)
    device = choose_device(ranks.device(config.train.device))
    set_up_torch(config, device, threads or config.train.threads)
    backend = "" if is_own(config.model.name) else backend_that_runs(config, device)
    if sets is None:
        with ranks.in_turn():
            sets = build_data(config, "train"), build_data(config, scored_split(config))
    train, test = build_loaders(config, *sets, ranks)
    net = _network(config, sets[0], own).to(device)
    if isinstance(net, OwnNetwork):
        net.sample_shape = sets[0].sample_shape
        x, _ = test.make(np.arange(min(2, len(sets[1]))), 0)
        check_network(net, x.to(device), len(sets[0].classes))
        backend = net.backend(device)
    started = start_from(config, net)
    objective = build_objective(config, net, sets[0], device)
    stepper = build_stepper(config, net, device, ranks, objective)
    return BuiltRun(
        config=config, backend=backend, sets=sets, train=train, test=test, net=net, stepper=stepper, started=started
    )


def check_processes(config: RunConfig, count: int) -> None:
    """Refuse what only one process can run."""
    if is_own(config.model.name) and count > 1:
        raise InputError(
            f"your own network {config.model.name} trains in one process, because its norms would see parts of a "
            f"batch, got {count} processes. Start one.",
            "one-process",
        )
    if get_objective(config.loss.name).one_process and count > 1:
        raise InputError(
            f"loss.name {config.loss.name} trains in one process, got {count} processes. Start one.", "one-process"
        )


def build_data(
    config: RunConfig, split: str, *, num_steps: int | None = None, download: bool | None = None
) -> ArraySet:
    """The samples of a split as the configuration asks for them.

    `split` is `train`, `test`, or `validation`: what is held out of the training samples. `num_steps` cuts recordings
    into another number of frames.
    """
    return chosen(config, load_data(config, split, num_steps=num_steps, download=download), split)


def load_data(config: RunConfig, split: str, *, num_steps: int | None = None, download: bool | None = None) -> ArraySet:
    """The whole official split that a split is chosen from."""
    d, spec = config.data, data_set(config)
    return load_dataset(
        spec,
        "test" if split == "test" else "train",
        data_dir=d.data_dir or None,
        allow_partial=d.allow_partial,
        download=d.download if download is None else download,
        num_steps=num_steps or config.model.num_steps,
        **d.model_dump(include=spec.option_names),
    )


def chosen(config: RunConfig, found: ArraySet, split: str) -> ArraySet:
    """The samples of a whole split that the configuration asks for."""
    d = config.data
    if split == "validation" or (split == "train" and d.holdout):
        found = hold_out(found, d.holdout, split)
    return subset(found, {"train": d.train_samples, "test": d.test_samples}.get(split, 0))


def official_counts(config: RunConfig) -> dict[str, int]:
    """How many training and test samples the data set has, before any is held out or left out."""
    counts = data_set(config).counts
    if not counts:
        raise InputError(
            f"the number of samples of {config.data.name} is known from its files alone. Give its --data.data-dir."
        )
    if "all" not in counts:
        return {split: counts[split] for split in ("train", "test")}
    labels = np.arange(counts["all"]) % data_set(config).num_classes
    by = part(SplitOptions, config.data)
    return {
        split: len(split_indices(labels, by.split_rule, split=split, seed=by.split_seed)[0])
        for split in ("train", "test")
    }


def sample_counts(config: RunConfig) -> dict[str, int]:
    """How many samples a run trains on and is scored on, if the data set is complete; too many are refused."""
    d, most = config.data, official_counts(config)
    if d.holdout >= most["train"]:
        raise too_large("holdout", d.holdout, d.name, most["train"] - 1)
    most["train"] -= d.holdout
    asked = {"train": d.train_samples, "test": d.test_samples}
    for split, count in asked.items():
        if count > most[split]:
            raise too_large(f"{split}_samples", count, d.name, most[split])
    counts = {split: count or most[split] for split, count in asked.items()}
    return {**counts, "test": d.holdout} if d.holdout else counts


def too_large(field: str, count: int, name: str, most: int) -> InputError:
    """The error for more samples than there are."""
    return InputError(f"data.{field} is {count}, and {name} has {most}. Use at most that, or 0 for all.")


def scored_split(config: RunConfig) -> str:
    """The samples that epochs are scored on."""
    return "validation" if config.data.holdout else "test"


def hold_out(found: ArraySet, count: int, split: str) -> ArraySet:
    """`validation`: `count` training samples, a fixed random choice, the same for every seed; `train`: the others."""
    if not 0 < count < len(found):
        raise InputError(
            f"data.holdout is {count}, and {found.name} has {len(found)} training samples. "
            "Use a number between, or 0 for none."
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


def check_batch_size(config: RunConfig, N: int) -> None:
    """Refuse a batch size that does not fit N training samples."""
    size = config.train.batch_size
    if size > N:
        raise InputError(
            f"train.batch_size is {size}, and {config.data.name} has {N} training samples. Use at most {N}."
        )
    if N % size == 1 and not config.data.drop_last:
        raise InputError(
            f"{N} samples in batches of {size} leave one alone, and batch statistics need two. "
            "Use --data.drop_last, or another --train.batch_size."
        )


def build_loaders(config: RunConfig, train: ArraySet, test: ArraySet, ranks: Ranks = ALONE) -> tuple[Loader, Loader]:
    """Batches to train on and to test with: a rank's shares of them."""
    check_batch_size(config, len(train))
    batches = Loader(
        train,
        batch_size=config.train.batch_size,
        seed=config.seed,
        train=True,
        augment=augment_steps(config),
        num_workers=config.train.workers,
        drop_last=config.data.drop_last,
        rank=ranks.rank,
        world_size=ranks.world,
        parts=config.train.accumulate,
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
    options = {k: v for k, v in config.model if k not in ("name", "weights")}
    seed_all(config.seed)
    return create_model(
        config.model.name,
        method=config.method,
        in_channels=in_channels,
        image_size=image_size,
        num_classes=num_classes,
        **options,
    )


def _network(config: RunConfig, data: ArraySet, own: OwnNetwork | None) -> Network | OwnNetwork:
    """The network of the configuration, or the user's own, whose random numbers follow the run's seed as well."""
    if own is not None:
        seed_all(config.seed)
        return own
    return (
        own_network(config, data.x.shape, len(data.classes)) if is_own(config.model.name) else network_for(config, data)
    )


def own_network(config: RunConfig, shape: Sequence[int], num_classes: int) -> OwnNetwork:
    """The network that `module:factory` builds for data of a shape (..., H, W, C), drawn from the run's seed."""
    if config.model.name == OWN:
        raise InputError(
            "model.name 'own' is a network that a Python program handed to mpd_agl.fit. Continue its run there with "
            "fit(..., resume=True), or name a function that builds a network: --model.name MODULE:FACTORY."
        )
    seed_all(config.seed)
    return call_factory(config.model.name, factory_options(config, shape, num_classes))


def factory_options(config: RunConfig, shape: Sequence[int], num_classes: int) -> dict[str, Any]:
    """What a factory may ask for; the image size is a pair where height and width differ."""
    height, width, channels = shape[-3:]
    size = height if height == width else (height, width)
    values = (num_classes, channels, size, config.model.num_steps, config.method)
    return dict(zip(OPTIONS, values, strict=True))


def network_for(config: RunConfig, data: ArraySet) -> Network:
    """The network that fits a data set."""
    height, width, channels = data.x.shape[-3:]
    if height != width:
        raise InputError(
            f"the networks take square images, got {height} x {width} from {data.name}. Use another data set."
        )
    return build_network(config, in_channels=channels, image_size=height, num_classes=len(data.classes))


def build_stepper(
    config: RunConfig,
    net: nn.Module,
    device: torch.device,
    ranks: Ranks = ALONE,
    objective: Objective | None = None,
) -> Stepper:
    """Optimizer, loss or objective, and average around a network; several ranks share its batches."""
    t, objective = config.train, objective or Objective()
    learns = any(True for _ in objective.parameters())
    trained = nn.ModuleList([net, objective]) if learns else net
    if ranks.world > 1:
        share_batch(net, ops.Replicas())
    return Stepper(
        net,
        build_optimizer(trained, config.optim, fused=device.type != "cpu"),
        objective,
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
            f"train.device must be a device that works here, got {name!r} ({reason}). "
            f"Use --train.device {' or '.join(here)}, or auto."
        ) from None
    return device


def set_up_torch(config: RunConfig, device: torch.device, threads: int) -> None:
    """The process's own settings: threads, determinism. `threads` 0 leaves torch's choice."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(config.train.deterministic, warn_only=device.type != "cpu")
    # filling new tensors with NaN would be a pass over memory that changes no result
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def backend_that_runs(config: RunConfig, device: torch.device) -> str:
    """The fused step's backend for the record; an error where the one asked for cannot run."""
    if config.model.ann:
        return "none (ANN)"
    return ops.resolve(config.model.backend, device, torch.float32).name
