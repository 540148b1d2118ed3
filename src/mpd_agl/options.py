"""Tables of options: typed, frozen, checked when made; the docstring of a field is its help.

An entry of a registry (a network, a method, a data set, an objective) names a table with its own options. `extended`
joins it to the table that all entries share, so that both are read from one place and checked at once.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mpd_agl.errors import unknown_name


class ConfigTable(BaseModel):
    """A table of options: frozen, no unknown fields, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    made_of: ClassVar[tuple[type["ConfigTable"], ...]] = ()
    """What `extended` made this class of."""

    def __reduce__(self) -> Any:
        return (_again, (*self.made_of, dict(self))) if self.made_of else super().__reduce__()


Table = TypeVar("Table", bound=ConfigTable)


@cache
def extended(base: type[Table], *tables: type[ConfigTable], without: type[ConfigTable] = ConfigTable) -> type[Table]:
    """`base` with the fields of further tables, but those of `without`.

    >>> class Depth(ConfigTable):
    ...     depth: int = 24
    >>> extended(ConfigTable, Depth)(depth="3").depth
    3
    """
    own: dict[str, Any] = {
        name: (field.annotation, field)
        for table in tables
        for name, field in table.model_fields.items()
        if name not in base.model_fields and name not in without.model_fields
    }
    if not own:
        return base
    made = create_model(base.__name__, __base__=base, __doc__=base.__doc__, **own)
    made.made_of = (base, *tables, without)
    return made


def _again(*parts: Any) -> Any:
    *tables, without, values = parts
    return extended(*tables, without=without)(**values)


def part(table: type[Table], values: ConfigTable) -> Table:
    """The fields of one table out of a table that was extended by it."""
    return table(**{name: getattr(values, name) for name in table.model_fields if hasattr(values, name)})


def sentences(error: ValidationError, table: type[BaseModel], show: Callable[[str], str] = str) -> list[str]:
    """Every mistake in a table as what, got, fix; `show` gives the name of a field as its user writes it."""
    return [sentence(one, table, show) for one in error.errors()]


def sentence(error: Any, table: type[BaseModel], show: Callable[[str], str] = str) -> str:
    """One of pydantic's errors."""
    path = [str(p) for p in error["loc"] if not isinstance(p, int)]
    shown, got = show(".".join(path)), error["input"]
    if error["type"] == "value_error":
        return f"{shown}: {error['ctx']['error']}" if shown else str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return str(unknown_name("field", shown, [f.alias or n for n, f in table.model_fields.items()]))
    if error["type"] == "missing":
        return f"{shown} is missing."
    if error["type"] == "literal_error":
        known = [word.strip(" '") for word in error["ctx"]["expected"].replace(" or ", ", ").split(",")]
        near = get_close_matches(str(got), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{shown} must be one of {', '.join(known)}, got {got!r}.{hint}"
    wish = error["msg"].split(",")[0].removeprefix("Input should be ").removeprefix("a valid ")
    wish = "a list of texts" if error["type"] == "tuple_type" else wish
    default = _default(table, path)
    fix = f" Its default is {default!r}." if isinstance(default, str | int | float | bool) else ""
    return f"{shown} must be {wish}, got {got!r}.{fix}"


def _default(table: type[BaseModel], path: list[str]) -> Any:
    for name in path[:-1]:
        kind = table.model_fields[name].annotation if name in table.model_fields else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return None
        table = kind
    return table.model_fields[path[-1]].default if path and path[-1] in table.model_fields else None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names.

    >>> flatten({"seed": 1, "optim": {"lr": 0.1}})
    {'seed': 1, 'optim.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat
