"""The planted mutants: what to find in src (once), what to put there, and the tests that must notice."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`text` must be in src exactly once, white space apart; `tests` are names of files under tests."""

    name: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS: tuple[Mutant, ...] = ()
