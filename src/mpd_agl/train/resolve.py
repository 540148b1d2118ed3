"""From preset, file and command line to a checked configuration, with all mistakes in one message."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.train.config import FREE_ON_RESUME, RunConfig
from mpd_agl.train.tables import ConfigTable

if TYPE_CHECKING:
    from mpd_agl.data.types import DataSet

Table = dict[str, Any]
OWN = "own"
"""The name of a network, a method or data that exist only in the program that called `mpd_agl.fit`."""


def fields_of(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Every field by its dotted name, with pydantic's description of it."""
    found: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, ConfigTable):
            found |= fields_of(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    return found


def flatten(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Nested tables as dotted names."""
    flat: Table = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def nest(flat: Mapping[str, Any]) -> Table:
    """Dotted names as nested tables."""
    table: Table = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        here = table
        for parent in parents:
            if not isinstance(here.get(parent), dict):
                here[parent] = {}
            here = here[parent]
        here[name] = value
    return table


def merge(*tables: Mapping[str, Any]) -> Table:
    """Later tables win, field by field."""
    flat: Table = {}
    for table in tables:
        flat |= flatten(table)
    return nest(flat)


def list_presets() -> dict[str, str]:
    """The recipes that come with the package, each with the first line of its file's comment."""
    found = {}
    for entry in sorted((files("mpd_agl") / "presets").iterdir(), key=lambda e: e.name.removesuffix(".toml")):
        if entry.name.endswith(".toml"):
            found[entry.name.removesuffix(".toml")] = entry.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return found


def read_preset(name: str) -> Table:
    """A preset's table."""
    if name not in (known := list_presets()):
        raise unknown_name("preset", name, known)
    return tomllib.loads((files("mpd_agl") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))


def read_toml(path: Path) -> Table:
    """A user's file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no configuration at {path}: the file is not there. Give a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {path} cannot be read: {error}. Give a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}. Correct that line.") from None


def resolve(table: Mapping[str, Any], given: Iterable[str] = (), mistakes: Iterable[str] = ()) -> RunConfig:
    """The checked configuration, or one `InputError` with every mistake.

    `given` names what came from the command line.
    """
    options = set(given)
    found = list(mistakes)
    config = None
    try:
        config = RunConfig.model_validate(dict(table))
    except ValidationError as error:
        found += [sentence(e, options) for e in error.errors()]
    found += name_mistakes(table, options)
    if not found and config is not None:
        found += conflicts(config)
    if found or config is None:
        raise as_error(found, "the configuration")
    return config


def as_error(found: list[str], where: str) -> InputError:
    """All mistakes as one error with a headline; a single mistake needs none."""
    if len(found) == 1:
        return InputError(found[0])
    return InputError(f"{len(found)} mistakes in {where}:\n" + "\n".join(f"  {text}" for text in found))


def _shown(path: str, options: set[str]) -> str:
    return f"--{path}" if path in options else path


def sentence(error: Any, options: Iterable[str] = ()) -> str:
    """One of pydantic's errors as what, got, fix."""
    path = ".".join(str(part) for part in error["loc"] if not isinstance(part, int))
    shown = _shown(path, set(options))
    if error["type"] == "extra_forbidden":
        return unknown_field(shown)
    got = error["input"]
    if error["type"] == "literal_error":
        known = [word.strip(" '") for word in error["ctx"]["expected"].replace(" or ", ", ").split(",")]
        near = get_close_matches(str(got), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{shown} must be one of {', '.join(known)}, got {got!r}.{hint}"
    wish = error["msg"].split(",")[0].removeprefix("Input should be ").removeprefix("a valid ")
    wish = "a list of texts" if error["type"] == "tuple_type" else wish
    default = fields_of()[path].default if path in fields_of() else None
    fix = f" Its default is {toml_value(default)}." if isinstance(default, str | int | float | bool | tuple) else ""
    return f"{shown} must be {wish}, got {got!r}.{fix}"


def unknown_field(name: str, further: Iterable[str] = ()) -> str:
    """The sentence for a field that does not exist; near misses by the whole name and by its last part."""
    plain = name.removeprefix("--").replace("-", "_")
    known = [*fields_of(), *further]
    by_last = [k for k in known if k.rpartition(".")[2] == plain.rpartition(".")[2]]
    near = by_last or get_close_matches(plain, known, n=1, cutoff=0.6)
    dashes = "--" if name.startswith("--") else ""
    hint = f" Did you mean {' or '.join(dashes + n for n in near)}?" if near else " See mpd-agl train --help."
    return f"unknown {'option' if dashes else 'field'} {name}.{hint}"


def name_mistakes(table: Mapping[str, Any], options: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Names that are in no registry."""
    from mpd_agl.core import SURROGATES
    from mpd_agl.data.registry import DATASETS
    from mpd_agl.data.splits import RULES
    from mpd_agl.models import MODELS
    from mpd_agl.nn import METHODS
    from mpd_agl.plugins import load_plugins

    load_plugins()
    flat, found = flatten(table), []
    own = str(flat.get("model.name", ""))
    registries: dict[str, tuple[str, Iterable[str]]] = {
        "method": ("method", (*METHODS, OWN) if own == OWN else METHODS),
        "model.name": ("model", (*MODELS, own) if own == OWN or ":" in own else MODELS),
        "model.surrogate": ("surrogate", ("auto", *SURROGATES)),
        "data.name": ("data set", (*DATASETS, OWN) if own == OWN or ":" in own else DATASETS),
        "data.split_rule": ("split rule", RULES),
    }
    for path, (kind, known) in registries.items():
        value = flat.get(path)
        if isinstance(value, str) and value not in known:
            found.append(f"{_shown(path, options)}: {unknown_name(kind, value, known)}")
    return found


def conflicts(config: RunConfig) -> list[str]:
    """Mistakes of fields that are right alone and wrong together."""
    from mpd_agl.data.augment import Augmentation
    from mpd_agl.nn import get_method

    found = []
    try:
        Augmentation(augment_steps(config), data_set(config).mean)
    except InputError as error:
        found.append(f"data.augment: {error}")
    method = None if config.method == OWN else get_method(config.method)
    own = None if method is None else method.surrogate
    if method is not None and not config.model.ann and 0 < method.max_steps < config.model.num_steps:
        found.append(
            f"method {config.method!r} trains at most {method.max_steps} timestep, got model.num_steps "
            f"{config.model.num_steps}. Use --model.num_steps {method.max_steps}."
        )
    if own and config.model.surrogate not in ("auto", own):
        found.append(
            f"model.surrogate: method {config.method!r} has its own surrogate {own!r}, "
            f"got {config.model.surrogate!r}. Leave it out."
        )
    if config.loss.robust_step > config.loss.robust_eps:
        found.append(
            f"loss.robust_step is a part of loss.robust_eps, got {config.loss.robust_step:g} of "
            f"{config.loss.robust_eps:g}. Use a smaller step."
        )
    if method is not None and config.model.kappa != 1:
        try:
            method.width().start_at(config.model.kappa)
        except InputError as error:
            found.append(f"model.kappa: method {config.method!r}: {error}")
    if method is not None:
        try:
            method.width().check_leak(config.model.leak)
        except InputError as error:
            found.append(f"model.leak: method {config.method!r}: {error}")
    if config.optim.warmup_epochs >= config.train.epochs:
        found.append(
            "optim.warmup_epochs must be less than train.epochs, "
            f"got {config.optim.warmup_epochs} of {config.train.epochs}."
        )
    return found


def rule_facts(config: RunConfig) -> Table:
    """The constants of the method's rule, for a run's record and digest; nothing where the method has none."""
    from mpd_agl.nn import get_method

    if config.method == OWN or config.model.ann:
        return {}
    constants = dict(get_method(config.method).constants())
    return {"rule": constants} if constants else {}


def data_set(config: RunConfig) -> "DataSet":
    """The data set that a configuration names."""
    from mpd_agl.data.registry import get
    from mpd_agl.data.types import ArraySet, DataSet, LoadOptions

    def read(split: str, options: LoadOptions) -> ArraySet:
        raise InputError(
            "the run's data were arrays in the memory of the program that called mpd_agl.fit, and no file holds them. "
            "Let fit read them from a folder or an .npz file, or work with the run in Python."
        )

    return DataSet(name=OWN, read=read) if config.data.name == OWN else get(config.data.name)


def augment_steps(config: RunConfig) -> tuple[str, ...] | str:
    """A recipe's name, or steps."""
    from mpd_agl.data.augment import RECIPES

    steps = config.data.augment
    return steps[0] if len(steps) == 1 and steps[0] in RECIPES else steps


def check_unchanged(old: RunConfig, new: RunConfig, whose: str = "a resumed run keeps its configuration") -> None:
    """Refuse a resumed run that would not be the same run, field by field."""
    before, after = flatten(old.model_dump()), flatten(new.model_dump())
    changed = [f for f in before if before[f] != after[f] and f not in FREE_ON_RESUME]
    if changed:
        what = "; ".join(f"{f} was {toml_value(before[f])}, got {toml_value(after[f])}" for f in changed)
        raise InputError(
            f"{whose}: {what}. Keep the old values, or start a new run with another --name. "
            f"What may change: {', '.join(FREE_ON_RESUME)}."
        )


def toml_value(value: Any) -> str:
    """One value as TOML spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def to_toml(config: RunConfig) -> str:
    """The complete configuration as a file that `--config` reads back."""
    table = config.model_dump()
    lines = [f"{name} = {toml_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{field} = {toml_value(value)}" for field, value in section.items())]
    return "\n".join(lines) + "\n"
