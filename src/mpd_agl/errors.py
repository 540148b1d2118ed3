"""The one error a user's input can cause, and the sentence it carries: what, got, fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input. The message is one sentence for a person; the command line prints it without a traceback.

    `code` says which mistake it is, for programs and tests: they read it, and never the sentence.
    """

    def __init__(self, message: str, code: str = "input") -> None:
        super().__init__(message)
        self.code = code


def unknown_name(kind: str, got: object, known: Iterable[str]) -> InputError:
    """Make the error for a name that is not in a registry; near misses first.

    >>> str(unknown_name("model", "resnet-19", ["resnet19", "vgg13"]))
    "unknown model 'resnet-19'. Did you mean 'resnet19'? Known: resnet19, vgg13."
    """
    names = sorted(known)
    near = get_close_matches(str(got), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InputError(f"unknown {kind} {got!r}.{hint} Known: {', '.join(names)}.", "unknown-name")
