"""`mpd-agl train`'s options: a few of its own, and every field of the configuration by its dotted name.

tyro writes the help from the typed configuration; values are read here, so that a mistake in a file and one on the command line end up in
the same message.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mpd_agl.experiments.config import RunConfig
from mpd_agl.experiments.presets import list_presets
from mpd_agl.experiments.resolve import fields_of, unknown_field

VALUES = ("preset", "config", "name", "runs-dir", "resume")
FLAGS = ("overwrite", "dry-run", "quiet", "json")

EXIT_CODES = (
    "exit codes: 0 finished; 2 bad input or a run that cannot go on; 75 stopped by Ctrl-C or SIGTERM, saved, continue with --resume; "
    "130 ended at once by a second Ctrl-C."
)


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

    >>> o = parse(["--preset", "demo", "--optim.lr", "0.05", "--optim.nesterov", "--data.augment", "crop=2", "flip", "--dry-run"])
    >>> o.values, o.flags, o.overrides
    ({'preset': 'demo'}, {'dry-run'}, {'optim.lr': '0.05', 'optim.nesterov': 'true', 'data.augment': ['crop=2', 'flip']})
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
        out.mistakes.append(unknown_field(f"--{name}", (*VALUES, *FLAGS)))


def _single(out: Options, name: str, values: list[str], into: dict[str, Any]) -> None:
    if len(values) == 1:
        into[name] = values[0]
    else:
        got = "none" if not values else " ".join(values)
        out.mistakes.append(f"--{name} takes one value, got {got}.")


def print_help() -> None:
    """`mpd-agl train --help`."""
    import tyro

    @dataclass
    class Arguments:
        """Train a network. The configuration is a preset's, then a file's, then what the command line says."""

        preset: str = ""
        """A recipe of the package, see below."""
        config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """Your own TOML file, over the preset."""
        name: str = ""
        """The run's name; default: preset (or network and data), method, seed."""
        runs_dir: Path = Path("runs")
        """Folder of the runs' folders."""
        resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
        """A run folder to continue; the final weights are those of a run that was never stopped."""
        overwrite: bool = False
        """Delete a run of the same name first."""
        dry_run: bool = False
        """Print configuration, size, time per epoch and memory from a few measured steps; train nothing."""
        quiet: bool = False
        """Print the result only."""
        json: bool = False
        """Print events and the record as JSON lines."""
        run: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)

    with suppress(SystemExit):
        tyro.cli(Arguments, prog="mpd-agl train", args=["--help"], config=(tyro.conf.FlagCreatePairsOff,))
    presets = "\n".join(f"  {name:24} {about}" for name, about in list_presets().items())
    print(f"\npresets:\n{presets}\n\n{EXIT_CODES}")
