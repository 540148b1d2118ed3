"""Three scales of every experiment (the paper's, two CPU cores, seconds for tests), and what each changes."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.study import Study, Variant, split_method
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import list_pretrained
from mpd_agl.options import flatten
from mpd_agl.train.config import FREE_ON_RESUME, RunConfig
from mpd_agl.train.presets import read_preset
from mpd_agl.train.resolve import merge, nest, resolve

SCALES = {
    "paper": "the paper's settings; needs a GPU",
    "cpu": "narrow networks, subsets, few epochs, for 2 cores",
    "smoke": "tiny networks on the embedded digits: seconds, for tests; the numbers mean nothing",
}
Flat = dict[str, Any]

_CPU: dict[str, Flat] = {
    "cifar10": {"data.train_samples": 10_000, "data.test_samples": 2_000},
    "cifar100": {"data.train_samples": 10_000, "data.test_samples": 2_000, "train.epochs": 6},
    "tinyimagenet": {"data.train_samples": 10_000, "data.test_samples": 2_000, "data.allow_partial": True},
    "cifar10dvs": {"data.name": "mnist5k-dvs", "data.frame_size": 34},
}
_CPU_ALL: Flat = {"model.width_mult": 0.125, "train.epochs": 8, "monitor.every": 20}
_SMOKE_ALL: Flat = {
    "model.width_mult": 0.0625,
    "data.augment": [],
    "data.train_samples": 200,
    "data.test_samples": 60,
    "train.batch_size": 20,
    "train.epochs": 2,
    "monitor.every": 4,
}

_LARGE = ("vgg11", "vgg13", "vgg16")
"""Networks that need 32 x 32 pixels. The digits have 28; their event frames can have any size."""


def table_at(variant: Variant, study: Study, scale: str) -> Flat:
    """A variant's values at a scale, by dotted name, without method and seed."""
    recipe = flatten(merge(read_preset(variant.preset), nest(variant.changes)))
    if study.protocol and scale in SCALES:
        own_scale: dict[str, Flat] = {
            "cpu": {},
            "smoke": {**_SMOKE_ALL, "data.name": "mnist5k"},
            "paper": _full(recipe),
        }
        return _over(recipe, own_scale[scale] | dict(variant.fixed))
    events = recipe["data.name"] == "cifar10dvs"
    if scale == "cpu":
        recipe = _over(recipe, {**_CPU_ALL, **_CPU[recipe["data.name"]], **study.cpu})
    elif scale == "smoke":
        recipe = _over(recipe, {**_SMOKE_ALL, "data.name": "mnist5k"})
        if events or recipe["model.name"] in _LARGE:
            size = 32 if recipe["model.name"] in _LARGE else 16
            recipe = _over(recipe, {"data.name": "mnist5k-dvs", "data.frame_size": size})
        recipe |= {"model.num_steps": min(recipe["model.num_steps"], 6), **study.smoke}
    elif scale != "paper":
        raise unknown_name("scale", scale, SCALES)
    return recipe


def _over(recipe: Flat, values: Mapping[str, Any]) -> Flat:
    """Values over a recipe; where they name another data set, it takes none of the old one's options."""
    return flatten(merge(nest(recipe), nest(values)))


def _full(recipe: Flat) -> Flat:
    """A recipe of the protocol at full size: all channels, all samples, the paper's epochs."""
    epochs = 150 if recipe["data.name"].startswith("cifar") else 12
    return {"model.width_mult": 1.0, "data.train_samples": 0, "data.test_samples": 0, "train.epochs": epochs}


def config_at(variant: Variant, study: Study, scale: str, seed: int, changes: Mapping[str, Any]) -> RunConfig:
    """A variant's run at a scale; `changes` are the user's, by dotted name."""
    for name in ("method", "seed"):
        if name in changes:
            raise InputError(f"--{name} does not go with experiments, which train several. Use --{name}s.")
    if "loss.teacher" in changes:
        raise InputError("--loss.teacher does not go with experiments, which train each run's teacher themselves.")
    if (weights := changes.get("model.weights", "")) and weights not in list_pretrained():
        raise InputError(
            f"experiments know weights to start from by their names, not by a folder: --model.weights takes "
            f"{' or '.join(list_pretrained())}, got {weights!r}. `mpd-agl train` takes a folder."
        )
    method, options = split_method(variant.method)
    table = _over(table_at(variant, study, scale), options | dict(changes) | {"method": method, "seed": seed})
    return resolve(nest(table), given=changes)


NO_DEPARTURE = (*FREE_ON_RESUME, "seed", "monitor.every", "train.threads", "train.device")
"""Fields whose change is no departure from the paper."""
_NAMES = {
    "model.width_mult": "width_mult",
    "model.num_steps": "T",
    "data.name": "data set",
    "data.train_samples": "training samples",
    "data.test_samples": "test samples",
    "data.allow_partial": "an incomplete data set taken:",
    "data.frame_size": "frame size",
    "data.augment": "augmentation",
    "train.epochs": "epochs",
    "train.batch_size": "batch size",
}


def departures(variants: Iterable[Variant], study: Study, scale: str, changes: Mapping[str, Any]) -> list[str]:
    """Where the runs depart from the paper's recipes, per recipe; empty at the paper's scale."""
    by_recipe: dict[str, dict[str, None]] = {}
    for variant in () if study.protocol else variants:
        here = flatten(config_at(variant, study, scale, 0, changes).model_dump())
        paper = flatten(config_at(variant, study, "paper", 0, {}).model_dump())
        words = [
            f"{_NAMES.get(f, f)} {_words(f, here[f])} instead of {_words(f, paper[f])}"
            for f in here
            if f in paper and here[f] != paper[f] and f not in NO_DEPARTURE
        ]
        by_recipe.setdefault(variant.preset, {}).update(dict.fromkeys(words))
    if not by_recipe:
        return []
    common = [w for w in next(iter(by_recipe.values())) if all(w in words for words in by_recipe.values())]
    out = [f"Departs from the paper: {', '.join(common)}."] if common else []
    for recipe, found in by_recipe.items():
        own = [w for w in found if w not in common]
        if own:
            out.append(f"Departs from the paper in {recipe}: {', '.join(own)}.")
    return out


def _words(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field.endswith("_samples"):
        return f"{value:,}" if value else "all"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
