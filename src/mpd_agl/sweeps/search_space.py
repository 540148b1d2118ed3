"""A sweep's search space: fields of the configuration, each with its choices or its range."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from mpd_agl.errors import InputError
from mpd_agl.options import ConfigTable, sentences
from mpd_agl.train.config import RunConfig
from mpd_agl.train.resolve import as_error, fields_of, merge, nest, resolve, unknown_field

Value = str | int | float | bool
WORDS = {"choices", "low", "high", "log", "int"}
NOT_SEARCHED = ("data.name", "data.holdout", "data.test_samples", "data.split_rule", "data.split_seed")
"""Trials that differ in these fields are scored on different samples, so they cannot be compared."""


class Choices(ConfigTable):
    """One of some values; a list (as for data.augment) is written with commas."""

    values: tuple[Value, ...] = Field(alias="choices", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _join(cls, entry: Any) -> Any:
        values = entry.get("choices")
        if not isinstance(values, list | tuple):
            return entry
        return {**entry, "choices": [",".join(map(str, v)) if isinstance(v, list) else v for v in values]}

    @model_validator(mode="after")
    def _check(self) -> "Choices":
        if len(set(self.values)) != len(self.values):
            raise ValueError("choices name a value twice. Leave one out.")
        return self

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


class Range(ConfigTable):
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = Field(default=False, alias="int")

    @model_validator(mode="after")
    def _check(self) -> "Range":
        if self.low >= self.high:
            raise ValueError(f"low must be under high, got {self.low:g} and {self.high:g}.")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low over 0, got {self.low:g}.")
        if self.whole and (self.low % 1 or self.high % 1):
            raise ValueError(f"low and high must be whole numbers, got {self}.")
        return self

    def __str__(self) -> str:
        how = [word for word, said in (("log", self.log), ("whole numbers", self.whole)) if said]
        return f"{self.low:g} to {self.high:g}" + (f" ({', '.join(how)})" if how else "")

    @property
    def ends(self) -> tuple[Value, ...]:
        """Both ends."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


Space = dict[str, Choices | Range]


def read_space(table: Mapping[str, Any], base: RunConfig, where: str) -> Space:
    """The space around a configuration; one `InputError` with every mistake."""
    space: Space = {}
    mistakes = []
    for name, entry in entries(table):
        try:
            space[name] = _entry(name, entry)
            _fits(base, name, space[name])
        except InputError as error:
            mistakes.append(str(error))
    if not mistakes and not space:
        mistakes.append(
            "search is empty. Name at least one field, "
            'as in "optim.lr" = {low = 0.01, high = 1.0, log = true} under [search].'
        )
    if mistakes:
        raise as_error(mistakes, where)
    return space


def entries(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The search's fields, whether written as `"optim.lr" = {...}` or as `optim.lr = {...}`."""
    for name, value in table.items():
        path = prefix + name
        inner = isinstance(value, Mapping) and value and not (value.keys() & WORDS) and path not in fields_of()
        if inner:
            yield from entries(value, f"{path}.")
        else:
            yield path.replace("-", "_"), value


def _entry(name: str, entry: Any) -> Choices | Range:
    known = fields_of()
    if name not in known:
        raise InputError(f"search: {unknown_field(name)}")
    if name in NOT_SEARCHED:
        raise InputError(
            f"search: {name} decides which samples are scored, so trials could not be compared. Put it under [fixed]."
        )
    if not isinstance(entry, Mapping):
        raise InputError(f"search: {name} must be {{choices = [...]}} or {{low = ..., high = ...}}, got {entry!r}.")
    kind, of_field = (Choices if "choices" in entry else Range), known[name].annotation
    if kind is Range and of_field not in (int, float):
        raise InputError(f"search: {name} is no number, so it takes {{choices = [...]}}, got {dict(entry)!r}.")
    try:
        return kind(**({**entry, "int": True} if kind is Range and of_field is int else entry))
    except ValidationError as error:
        raise InputError(f"search: {name}: {' '.join(sentences(error, kind))}") from None


def _fits(base: RunConfig, name: str, entry: Choices | Range) -> None:
    """Each value alone must make a configuration: a bound outside a field's range ends here, not at trial 17."""
    for value in entry.values if isinstance(entry, Choices) else entry.ends:
        try:
            resolve(merge(base.model_dump(), nest({name: as_field(name, value)})))
        except InputError as error:
            raise InputError(f"search: {error}") from None


def as_field(name: str, value: Value) -> Any:
    """A searched value as the configuration takes it."""
    if fields_of()[name].annotation == tuple[str, ...]:
        return [part for part in str(value).split(",") if part]
    return value
