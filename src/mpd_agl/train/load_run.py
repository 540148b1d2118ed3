"""A finished or stopped run as a network again: its configuration, its record, its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from mpd_agl.errors import InputError
from mpd_agl.models import Network, create_model, load_weights, pretrained_card
from mpd_agl.records import RunRecord, read_record, reading
from mpd_agl.train import build, checkpoint
from mpd_agl.train.config import OWN, RunConfig, is_own
from mpd_agl.train.own_network import (
    OwnNetwork,
    check_network,
    recall_forward,
    recall_network,
    state_hash,
)
from mpd_agl.train.resolve import read_toml, resolve, resolve_recorded
from mpd_agl.train.runfolder import check_run

MAX_SIDE = 65536
"""No data set has more pixels on a side, channels or classes.

A damaged record that claims more must not fill the memory.
"""


@dataclass(frozen=True)
class Trained:
    """What a run left."""

    config: RunConfig
    record: RunRecord
    net: Network | OwnNetwork
    weights: str
    """Which weights: the file's or checkpoint's name."""

    @property
    def network(self) -> Network:
        """The network, where only one of the package's will do."""
        if isinstance(self.net, OwnNetwork):
            raise InputError(
                f"this needs a network of mpd-agl, and run {self.record.name} trained your own {self.net.title}. "
                "Leave the option out, or work with the network in Python."
            )
        return self.net

    @property
    def num_steps(self) -> int:
        """T, as trained."""
        return self.net.num_steps if isinstance(self.net, OwnNetwork) else self.config.model.num_steps

    def set_steps(self, num_steps: int) -> None:
        """Run another number of timesteps."""
        if isinstance(self.net, Network):
            self.net.num_steps = num_steps
        else:
            self.net.set_steps(num_steps, frames=len(self.record.data["shape"]) == 4)


def load_run(path: Path, which: str, note: Callable[[str], None], *, factory: str = "") -> Trained:
    """A run's network with its weights: `last`, the result, or `best`, the best epoch on the test set.

    The last weights of an unfinished run are its newest checkpoint's. `factory` builds the
    network of a run of `mpd_agl.fit`. A run of an own network imports the user's module and runs its code.
    """
    if which not in ("last", "best"):
        raise InputError(f"--weights must be last or best, got {which!r}.")
    check_run(path)
    config = resolve(read_toml(path / "config.toml"))
    record = read_record(path / "record.json")
    with reading(path):
        size, channels, classes = record.data["shape"][-2], record.data["shape"][-1], len(record.data["classes"])
        most = MAX_SIDE**2 if "sample_shape" in record.data["train"] else MAX_SIDE
        if not all(type(n) is int and 1 <= n <= most for n in (size, channels, classes)):
            raise ValueError(f"images of {size} pixels, {channels} channels, {classes} classes")
    net: Network | OwnNetwork
    if is_own(config.model.name):
        net = _own_network(config, record, factory, path)
    elif factory:
        raise InputError(
            f"--factory is for your own networks, and run {path} trained {config.model.name}. Leave it out."
        )
    else:
        net = build.build_network(config, in_channels=channels, image_size=size, num_classes=classes)
    final = path / "model.safetensors"
    if which == "last" and final.is_file():
        load_weights(net, final)
        return Trained(config, record, net.eval(), final.name)
    saved = _checkpoint(path, which, note)
    net.load_state_dict(saved.tensors.get("ema", saved.tensors["model"]))
    return Trained(config, record, net.eval(), saved.at.folder)


def load_pretrained(pretrained: str) -> Trained:
    """A trained network by its name or card, as the run that made it would be loaded."""
    card = pretrained_card(pretrained)
    with reading(f"the model card {card.name}"):
        config = resolve_recorded(card.record["config"])
        record = RunRecord(**card.record)
        if not all(type(n) is int and 1 <= n <= MAX_SIDE for n in card.shape):
            raise ValueError(f"images of shape {card.shape}")
        if not len(card.mean) == len(card.std) == card.shape[-1]:
            raise ValueError("mean and std do not fit the channels")
    net = create_model(card.model, pretrained=card)
    return Trained(config, record, net, f"pretrained {card.name} ({card.weights['format']})")


def _own_network(config: RunConfig, record: RunRecord, factory: str, path: Path) -> OwnNetwork:
    """Build the user's network again; its state must have the names and shapes of the one that was trained."""
    facts, shape, classes = record.network, record.data["shape"], record.data["classes"]
    name = factory or config.model.name
    if name == OWN:
        net = recall_network(facts, build.factory_options(config, shape, len(classes)), str(path))
    else:
        named = config.model_copy(update={"model": config.model.model_copy(update={"name": name})})
        net = build.own_network(named, shape, len(classes))
    net.own_forward = None if factory else recall_forward(facts, str(path))
    rows = record.data["train"].get("sample_shape")
    net.sample_shape = None if rows is None else tuple(rows)
    frames = [config.model.num_steps] if len(shape) == 4 else []
    check_network(net, torch.zeros(*frames, 2, shape[-1], *shape[-3:-1]), len(classes))
    if state_hash(net) != facts.get("state_sha256"):
        raise InputError(
            f"run {path} trained another network than {net.name} builds: their states have other names or shapes. "
            "Give the one that it trained: --factory MODULE:FACTORY."
        )
    return net


def _checkpoint(path: Path, which: str, note: Callable[[str], None]) -> checkpoint.Checkpoint:
    root = path / "checkpoints"
    saved = checkpoint.newest(root, note, set_aside=False)
    if saved is None:
        raise InputError(
            f"run {path} has no weights yet: no checkpoint is whole. Continue it with --resume.", "no-weights"
        )
    if which == "last":
        return saved
    best = saved.state["progress"]["best"]
    if best is None:
        raise InputError(f"run {path} has no best epoch yet: none is complete. Use --weights last.", "no-weights")
    at = checkpoint.Position(best["epoch"], best["step"])
    try:
        return checkpoint.read(root / at.folder)
    except checkpoint.Damaged as damage:
        raise InputError(f"checkpoint {root / at.folder} is damaged: {damage}. Use --weights last.") from None


def evaluation_device(trained: Trained) -> torch.device:
    """Where to run it: the configuration's device if it works here, else the CPU."""
    try:
        return build.choose_device(trained.config.train.device)
    except InputError:
        return torch.device("cpu")
