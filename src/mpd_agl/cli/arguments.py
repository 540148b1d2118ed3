"""What the commands share: argparse, whose mistakes become one sentence with the option that was meant, and tables."""

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpd_agl.errors import InputError

FACTORY_HELP = "what builds the network of a run of mpd_agl.fit; it runs your code (default: the network's class)"

PRETRAINED_HELP = "a trained network in place of a run: its name, a card's path, or https://host/card.json#sha256=HEX"


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `InputError` and takes no abbreviations."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; an unknown option is answered with the nearest one."""
        found, surplus = self.parse_known_args(args, namespace)
        if surplus:
            raise InputError(self.unknown(surplus[0], getattr(found, "command", None)))
        return found

    def unknown(self, got: str, command: str | None = None) -> str:
        """The sentence for an argument that the command does not know."""
        inner = self._inner(command)
        name = got.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {got!r}. See {inner.prog} --help."
        known = [o for action in inner._actions for o in action.option_strings if o.startswith("--")]
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(sorted(known))}."
        return f"unknown option {name}.{hint}"

    def _inner(self, command: str | None) -> argparse.ArgumentParser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and command in action.choices:
                found: argparse.ArgumentParser = action.choices[command]
                return found
        return self

    def error(self, message: str) -> NoReturn:
        """One sentence in place of a usage text."""
        raise InputError(f"{message}. See {self.prog} --help.")


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), width: int = 160
) -> None:
    """Print a table without lines; the columns `right` are numbers.

    `width` is that of an output which is no terminal.
    """
    numbers = set(right)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="right" if i in numbers else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    Console(width=console.width if console.is_terminal else width).print(table)
