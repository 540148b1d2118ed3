"""From preset, file and command line to a checked configuration, with all mistakes in one message."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo

from mpd_agl.data.augment import RECIPES, Augmentation
from mpd_agl.data.registry import DATASETS, get
from mpd_agl.data.types import ArraySet, DataSet, LoadOptions
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import MODELS, NetworkOptions
from mpd_agl.nn import METHODS, get_method
from mpd_agl.options import ConfigTable, extended, flatten, part, sentence
from mpd_agl.plugins import load_plugins
from mpd_agl.train.config import FREE_ON_RESUME, OWN, DataConfig, LossConfig, ModelConfig, RunConfig, is_own
from mpd_agl.train.objective import OBJECTIVES

Table = dict[str, Any]


class Registry(NamedTuple):
    """A registry that a field names an entry of."""

    kind: str
    section: str
    """The table of the configuration that takes the entries' options."""
    default: str
    entries: dict[str, type[ConfigTable]]
    """The options of each."""


def registries() -> dict[str, Registry]:
    """Every registry by the field that chooses from it, plugins included."""
    load_plugins()
    nets = {n: extended(ConfigTable, e.options, without=NetworkOptions) for n, e in MODELS.items()}
    return {
        "method": Registry("method", "model", RunConfig().method, {n: m.options for n, m in METHODS.items()}),
        "model.name": Registry("model", "model", ModelConfig().name, nets),
        "data.name": Registry(
            "data set", "data", DataConfig().name, {n: (d.options or ConfigTable) for n, d in DATASETS.items()}
        ),
        "loss.name": Registry("loss", "loss", LossConfig().name, {n: o.options for n, o in OBJECTIVES.items()}),
    }


@cache
def run_table(model: Any = ModelConfig, data: Any = DataConfig, loss: Any = LossConfig) -> type[RunConfig]:
    """A run's configuration with these tables."""
    sections: dict[str, Any] = {"model": (model, model()), "data": (data, data()), "loss": (loss, loss())}
    return create_model("RunConfig", __base__=RunConfig, __doc__=RunConfig.__doc__, **sections)


def table_for(flat: Mapping[str, Any]) -> tuple[type[RunConfig], dict[str, InputError]]:
    """The configuration's class for the entries that a table names, and the names that are in no registry."""
    options: dict[str, list[type[ConfigTable]]] = {"model": [], "data": [], "loss": []}
    unknown = {}
    network = str(flat.get("model.name", ""))
    for path, registry in registries().items():
        name = flat.get(path, registry.default)
        own = {"method": network == OWN, "model.name": is_own(network), "data.name": is_own(network)}.get(path)
        if isinstance(name, str) and name in registry.entries:
            options[registry.section].append(registry.entries[name])
        elif isinstance(name, str) and not (own and (name == OWN or path == "model.name")):
            unknown[path] = unknown_name(registry.kind, name, registry.entries)
    model: Any = ModelConfig if is_own(network) else extended(ModelConfig, *options["model"])
    data: Any = extended(DataConfig, *options["data"])
    loss: Any = extended(LossConfig, *options["loss"])
    return run_table(model, data, loss), unknown


def fields_of(table: type[ConfigTable] | None = None, prefix: str = "") -> dict[str, FieldInfo]:
    """Every field by its dotted name, those of all entries of all registries included where no table is given."""
    found: dict[str, FieldInfo] = {}
    for name, info in (table or RunConfig).model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, ConfigTable):
            found |= fields_of(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    if table is None:
        for registry in registries().values():
            for options in registry.entries.values():
                found |= {f"{registry.section}.{n}": i for n, i in options.model_fields.items()}
    return found


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
    """Later tables win, field by field; where one names another entry, it takes none of the old entry's options."""
    flat: Table = {}
    for table in map(flatten, tables):
        for path in ("method", "model.name", "data.name", "loss.name"):
            if path in table and table[path] != flat.get(path, table[path]):
                flat = _without(path, flat)
        flat |= table
    return nest(flat)


def _without(path: str, flat: Table) -> Table:
    registry = registries()[path]
    own = registry.entries.get(str(flat[path]), ConfigTable).model_fields
    return {name: value for name, value in flat.items() if name not in {f"{registry.section}.{n}" for n in own}}


def read_toml(path: Path) -> Table:
    """A user's file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no configuration at {path}: the file is not there. Give a TOML file.", "no-file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {path} cannot be read: {error}. Give a TOML file.", "bad-toml") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}. Correct that line.", "bad-toml") from None


def resolve(table: Mapping[str, Any], given: Iterable[str] = (), mistakes: Iterable[str] = ()) -> RunConfig:
    """The checked configuration, or one `InputError` with every mistake.

    `given` names what came from the command line.
    """
    options, flat, found = set(given), flatten(table), list(mistakes)

    def show(path: str) -> str:
        return f"--{path}" if path in options else path

    kind, unknown = table_for(flat)
    found += [f"{show(path)}: {error}" for path, error in unknown.items()]
    config = None
    try:
        config = kind.model_validate(dict(table))
    except ValidationError as error:
        for one in error.errors():
            path = ".".join(str(p) for p in one["loc"] if not isinstance(p, int))
            surplus = one["type"] == "extra_forbidden"
            found.append(unknown_field(show(path), flat) if surplus else sentence(one, kind, show))
    if not found and config is not None:
        found += conflicts(config)
    if found or config is None:
        raise as_error(found, "the configuration")
    return config


def resolve_recorded(table: Mapping[str, Any]) -> RunConfig:
    """The configuration of a record or card of any version: fields that are no more are left out."""
    known = fields_of(table_for(flatten(table))[0])
    return resolve(nest({name: value for name, value in flatten(table).items() if name in known}))


def as_error(found: list[str], where: str) -> InputError:
    """All mistakes as one error with a headline; a single mistake needs none."""
    if len(found) == 1:
        return InputError(found[0], "bad-config")
    return InputError(f"{len(found)} mistakes in {where}:\n" + "\n".join(f"  {text}" for text in found), "bad-config")


def unknown_field(name: str, flat: Mapping[str, Any] | None = None, further: Iterable[str] = ()) -> str:
    """The sentence for a field that does not exist here: which entries have it, or near misses."""
    plain = name.removeprefix("--").replace("-", "_")
    section, _, last = plain.rpartition(".")
    for path, registry in registries().items():
        having = [
            n for n, options in registry.entries.items() if registry.section == section and last in options.model_fields
        ]
        if having and flat is not None:
            chosen = flat.get(path, registry.default)
            return f"{name} is an option of {path} {' or '.join(having)}, got {path} {chosen!r}. Leave it out."
    known = [*fields_of(), *further]
    by_last = [k for k in known if k.rpartition(".")[2] == last]
    near = by_last or get_close_matches(plain, known, n=1, cutoff=0.6)
    dashes = "--" if name.startswith("--") else ""
    hint = f" Did you mean {' or '.join(dashes + n for n in near)}?" if near else " See mpd-agl train --help."
    return f"unknown {'option' if dashes else 'field'} {name}.{hint}"


def conflicts(config: RunConfig) -> list[str]:
    """Mistakes of fields that are right alone and wrong together."""
    found, m = [], config.model
    try:
        Augmentation(augment_steps(config), data_set(config).mean)
    except InputError as error:
        found.append(f"data.augment: {error}")
    if config.method != OWN and not is_own(m.name):
        method = get_method(config.method)
        if not m.ann and 0 < method.max_steps < m.num_steps:
            found.append(
                f"method {config.method!r} trains at most {method.max_steps} timestep, got model.num_steps "
                f"{m.num_steps}. Use --model.num_steps {method.max_steps}."
            )
        try:
            method.surrogate_with(None if m.surrogate == "auto" else m.surrogate)
        except InputError as error:
            found.append(f"model.surrogate: {error}")
    try:
        part(OBJECTIVES[config.loss.name].options, config.loss)
    except ValidationError as error:
        found += [sentence(one, LossConfig, lambda path: "loss") for one in error.errors()]
    if config.optim.warmup_epochs >= config.train.epochs:
        found.append(
            "optim.warmup_epochs must be less than train.epochs, "
            f"got {config.optim.warmup_epochs} of {config.train.epochs}."
        )
    return found


def rule_facts(config: RunConfig) -> Table:
    """The constants of the method's rule, for a run's record and digest; nothing where the method has none."""
    if config.method == OWN or config.model.ann:
        return {}
    constants = dict(get_method(config.method).constants())
    return {"rule": constants} if constants else {}


def data_set(config: RunConfig) -> DataSet:
    """The data set that a configuration names."""
    return DataSet(name=OWN, read=_in_memory) if config.data.name == OWN else get(config.data.name)


def _in_memory(split: str, options: LoadOptions) -> ArraySet:
    raise InputError(
        "the run's data were arrays in the memory of the program that called mpd_agl.fit, and no file holds them. "
        "Let fit read them from a folder or an .npz file, or work with the run in Python."
    )


def augment_steps(config: RunConfig) -> tuple[str, ...] | str:
    """A recipe's name, or steps."""
    steps = config.data.augment
    return steps[0] if len(steps) == 1 and steps[0] in RECIPES else steps


def check_unchanged(old: RunConfig, new: RunConfig, whose: str = "a resumed run keeps its configuration") -> None:
    """Refuse a resumed run that would not be the same run, field by field."""
    before, after = flatten(old.model_dump()), flatten(new.model_dump())
    changed = [f for f in before | after if before.get(f) != after.get(f) and f not in FREE_ON_RESUME]
    if changed:
        what = "; ".join(f"{f} was {toml_value(before.get(f))}, got {toml_value(after.get(f))}" for f in changed)
        raise InputError(
            f"{whose}: {what}. Keep the old values, or start a new run with another --name. "
            f"What may change: {', '.join(FREE_ON_RESUME)}.",
            "changed-config",
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
            rows = sorted(section.items(), key=lambda row: row[0] != "name")
            lines += ["", f"[{name}]", *(f"{field} = {toml_value(value)}" for field, value in rows)]
    return "\n".join(lines) + "\n"
