"""A sweep's search space: fields of the configuration, each with its choices or its range."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.train.config import RunConfig
from mpd_agl.train.resolve import as_error, fields_of, merge, nest, resolve, unknown_field

Value = str | int | float | bool
WORDS = {"choices", "low", "high", "log", "step", "int"}
NOT_SEARCHED = ("data.name", "data.holdout", "data.test_samples", "data.split_rule", "data.split_seed")
"""Trials that differ in these fields are scored on different samples, so they cannot be compared."""


@dataclass(frozen=True)
class Choices:
    """One of some values; a list (as for data.augment) is written with commas."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    step: float = 0.0
    """0: no steps (of 1 for whole numbers)."""
    whole: bool = False

    def __str__(self) -> str:
        how = [word for word, said in (("log", self.log), ("whole numbers", self.whole)) if said]
        how += [f"step {self.step:g}"] if self.step else []
        return f"{self.low:g} to {self.high:g}" + (f" ({', '.join(how)})" if how else "")

    @property
    def count(self) -> int:
        """Points on a grid; 0 where there are infinitely many."""
        step = self.step or (1 if self.whole else 0)
        return 0 if not step or self.log else math.floor((self.high - self.low) / step + 1e-9) + 1

    def points(self) -> tuple[Value, ...]:
        """For a grid."""
        return tuple(self.low + k * (self.step or 1) for k in range(self.count))


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
    if surplus := sorted(entry.keys() - WORDS):
        raise InputError(f"search: {name}: {unknown_name('word', surplus[0], WORDS)}")
    kind = known[name].annotation
    if "choices" in entry:
        return _choices(name, entry, kind)
    return _range(name, entry, kind)


def _choices(name: str, entry: Mapping[str, Any], kind: Any) -> Choices:
    values = entry["choices"]
    if len(entry) > 1:
        other = ", ".join(sorted(entry.keys() - {"choices"}))
        raise InputError(f"search: {name} has choices and {other}. Give one or the other.")
    if not isinstance(values, list) or not values:
        raise InputError(f"search: {name}: choices must be a list with at least one value, got {values!r}.")
    made = []
    for value in values:
        wrong = (kind is bool) != isinstance(value, bool)
        wrong |= kind is float and not isinstance(value, int | float)
        wrong |= kind is int and not isinstance(value, int)
        wrong |= kind not in (bool, int, float) and kind != tuple[str, ...] and not isinstance(value, str)
        if wrong:
            wish = {bool: "true or false", int: "whole numbers", float: "numbers"}.get(kind, "texts")
            raise InputError(f"search: {name}: choices must be {wish}, got {value!r}.")
        made.append(",".join(map(str, value)) if isinstance(value, list) else value)
    if len(set(made)) != len(made):
        raise InputError(f"search: {name}: choices name a value twice. Leave one out.")
    return Choices(tuple(made))


def _range(name: str, entry: Mapping[str, Any], kind: Any) -> Range:
    if kind not in (int, float):
        raise InputError(f"search: {name} is no number, so it takes {{choices = [...]}}, got {dict(entry)!r}.")
    for word in ("low", "high"):
        if word not in entry:
            raise InputError(f"search: {name} has no {word}. Give {{low = ..., high = ...}} or {{choices = [...]}}.")
    low, high, step, log = entry["low"], entry["high"], entry.get("step", 0), entry.get("log", False)
    whole = kind is int or entry.get("int", False) is True
    if not isinstance(log, bool) or not isinstance(entry.get("int", False), bool):
        raise InputError(f"search: {name}: log and int must be true or false.")
    for word, value in (("low", low), ("high", high), ("step", step)):
        number = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, number) or not math.isfinite(value):
            raise InputError(f"search: {name}: {word} must be a {'whole ' if whole else ''}number, got {value!r}.")
    if low >= high:
        raise InputError(f"search: {name}: low must be under high, got {low} and {high}.")
    if log and (low <= 0 or step):
        raise InputError(f"search: {name}: log needs a low over 0 and no step, got low {low} and step {step}.")
    if step < 0 or step > high - low:
        raise InputError(f"search: {name}: step must be between 0 and high - low, got {step}.")
    return Range(low, high, log, step, whole)


def _fits(base: RunConfig, name: str, entry: Choices | Range) -> None:
    """Each value alone must make a configuration: a bound outside a field's range ends here, not at trial 17."""
    for value in entry.values if isinstance(entry, Choices) else (entry.low, entry.high):
        try:
            resolve(merge(base.model_dump(), nest({name: as_field(name, value)})))
        except InputError as error:
            raise InputError(f"search: {error}") from None


def as_field(name: str, value: Value) -> Any:
    """A searched value as the configuration takes it."""
    if fields_of()[name].annotation == tuple[str, ...]:
        return [part for part in str(value).split(",") if part]
    return value
