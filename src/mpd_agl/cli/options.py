"""`mpd-agl train`'s options: a few of its own, and every field of the configuration by its dotted name.

Values stay text here; the typed configuration reads them, so that the mistakes of a file and of the command line come
in one message.
"""

from dataclasses import dataclass, field
from typing import Any

from mpd_agl.train.resolve import fields_of, unknown_field

VALUES = {
    "preset": ("NAME", "a recipe of the package, see below"),
    "config": ("FILE", "your own TOML file, over the preset"),
    "name": ("NAME", "the run's name (default: preset or data and network, method, seed)"),
    "runs-dir": ("DIR", "folder of the runs' folders (default: runs)"),
    "resume": ("RUN", "continue a run; its final weights are those of a run that was never stopped"),
}
FLAGS = {
    "overwrite": "delete a run of the same name first",
    "dry-run": "print configuration, size, time per epoch and memory from a few measured steps; train nothing",
    "quiet": "print the result only",
    "json": "print log lines and the record as JSON",
    "help": "this text; with --preset, its values as the defaults",
}


@dataclass
class Options:
    """What the command line said; mistakes are collected, not raised."""

    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the configuration, by dotted name, as text."""
    mistakes: list[str] = field(default_factory=list)


def parse(argv: list[str]) -> Options:
    """Read the command line.

    >>> o = parse("--preset demo --optim.lr 0.05 --optim.nesterov --data.augment crop=2 flip --dry-run".split())
    >>> o.values, o.flags
    ({'preset': 'demo'}, {'dry-run'})
    >>> o.overrides
    {'optim.lr': '0.05', 'optim.nesterov': 'true', 'data.augment': ['crop=2', 'flip']}
    """
    out, known = Options(), fields_of()
    tokens = _tokens(argv)
    while tokens:
        token = tokens.pop(0)
        if not token.startswith("--"):
            out.mistakes.append(f"unexpected argument {token!r}. Options start with --, as in --preset demo.")
            continue
        name, has_value, value = token[2:].partition("=")
        values = [value] if has_value else []
        while not has_value and tokens and not tokens[0].startswith("--"):
            values.append(tokens.pop(0))
        _take(out, known, name, values)
    return out


def _tokens(argv: list[str]) -> list[str]:
    return [{"-q": "--quiet", "-h": "--help"}.get(a, a) for a in argv]


def _take(out: Options, known: dict[str, Any], name: str, values: list[str]) -> None:
    plain = name.replace("-", "_") if name.replace("-", "_") in known else name
    section, _, last = name.rpartition(".")
    negated = f"{section}.{last.removeprefix('no-')}".removeprefix("no-").replace("-", "_")
    if name in FLAGS:
        out.flags.add(name)
        out.mistakes += [f"unexpected argument {v!r} behind --{name}, which takes no value." for v in values]
    elif name in VALUES:
        _single(out, name, values, out.values)
    elif plain in known and known[plain].annotation == tuple[str, ...]:
        out.overrides[plain] = [part for v in values for part in v.split(",") if part]
    elif plain in known and known[plain].annotation is bool and not values:
        out.overrides[plain] = "true"
    elif plain in known:
        _single(out, plain, values, out.overrides)
    elif negated in known and known[negated].annotation is bool and not values:
        out.overrides[negated] = "false"
    else:
        out.mistakes.append(unknown_field(f"--{name}", further=(*VALUES, *FLAGS)))


def _single(out: Options, name: str, values: list[str], into: dict[str, Any]) -> None:
    if len(values) == 1:
        into[name] = values[0]
    else:
        got = "none" if not values else " ".join(values)
        out.mistakes.append(f"--{name} takes one value, got {got}.")
