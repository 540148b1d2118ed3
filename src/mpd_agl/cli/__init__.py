"""The command line: one file per subcommand, imported only when it is asked for.

Each subcommand's module has `run(argv) -> int`. A user's mistake raises `InputError`; it is printed as one sentence,
without a traceback.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module

from mpd_agl import __version__
from mpd_agl.errors import InputError, unknown_name

COMMANDS = {
    "demo": "three minutes: a network learns digits, and a picture shows what a fitting width is good for",
    "train": "train a network: a preset, your own TOML, or options; resume; dry run",
    "launch": "train on several processes or nodes, through torchrun",
    "evaluate": "accuracy per class and confusion of a run, at any number of timesteps",
    "predict": "classify images with a run's network",
    "report": "one page with curves, widths, potentials, energy; several runs are compared",
    "runs": "list runs: method, data, accuracy, time",
    "sweep": "search over fields of a configuration with Optuna; resume, pruning, SLURM",
    "info": "versions, backends that work here and why others do not, presets",
    "diagnose": "find training problems of your own spiking network, by layer, and suggest fixes",
    "energy": "count operations and energy per layer, and those of the ANN",
    "import-weights": "read a foreign .pt file's tensors, and nothing else, into a safetensors file",
    "export": "write a run's network as ONNX or NIR",
    "data": "list, fetch, verify and show data sets",
}
MOVED = {"reproduce": "python -m experiments", "bench": "python -m benchmarks"}
"""Commands of 0.2 that live next to the package since 0.3."""


def usage() -> str:
    """The text of `mpd-agl --help`."""
    rows = "\n".join(f"  {name:14} {text}" for name, text in COMMANDS.items())
    return (
        "usage: mpd-agl COMMAND [OPTIONS]\n\nSpiking neural networks with surrogate gradients that fit (MPD-AGL).\n\n"
        f"commands:\n{rows}\n\noptions:\n  --version   print the version\n"
        "  --debug     show the traceback of an error\n\n"
        "`mpd-agl COMMAND --help` tells a command's options.\n"
    )


def welcome() -> str:
    """The text of `mpd-agl` alone: where to begin, and where the rest is."""
    return f"""\
MPD-AGL {__version__}: spiking neural networks with surrogate gradients that fit.

Begin here
  mpd-agl demo                            three minutes: a network learns digits, and what a fitting width does
  mpd-agl runs --open                     the report of the newest run in your browser
  mpd-agl predict RUN digit.png           what it sees in a picture
  mpd-agl predict --pretrained cifar10 photo.jpg    a network that is trained already

Your own network
  mpd-agl diagnose module:factory         why it does not learn, and what fixes it
  mpd_agl.adapt(net, images)              in Python: fits scale and width of a SpikingJelly, snnTorch or Norse net

The paper, in a clone of the repository
  python -m experiments --list            its tables and figures, what each costs on this machine

`mpd-agl --help` lists every command, `mpd-agl COMMAND --help` its options, `mpd-agl info` what works here.
"""


INTERRUPTED = {
    "data": "What was downloaded is kept: the same command continues.",
    "train": "The last checkpoint stands: `mpd-agl train --resume RUN` continues, `mpd-agl runs` lists the runs.",
    "launch": "The last checkpoint stands: the same command with --resume RUN continues.",
    "sweep": "Finished trials are kept: the same command continues.",
}
"""How to continue after Ctrl-C, by command; for the others nothing is kept."""


def main(argv: list[str] | None = None) -> int:
    """Run `mpd-agl`; return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [a for a in args if a != "--debug"]
    if not args or args[0] in ("-h", "--help"):
        print(usage() if args else welcome(), end="")
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    return call(command(args[0]), args[1:], then=INTERRUPTED.get(args[0], ""), debug=debug)


def command(name: str) -> Callable[[list[str]], int]:
    """The `run` of a subcommand, imported when it is called."""

    def run(args: list[str]) -> int:
        if name in MOVED:
            raise InputError(f"{name!r} is not a command of the installed package: in a clone, use `{MOVED[name]}`.")
        if name not in COMMANDS:
            raise unknown_name("command", name, COMMANDS)
        code: int = import_module(f"mpd_agl.cli.{name.replace('-', '_')}").run(args)
        return code

    return run


def call(run: Callable[[list[str]], int], args: list[str], *, then: str = "", debug: bool = False) -> int:
    """Run a command; a user's mistake becomes one sentence. `then` says how to continue after Ctrl-C."""
    try:
        return run(args)
    except InputError as error:
        if debug:
            raise
        print(f"mpd-agl: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `mpd-agl ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be written
        if debug:
            raise
        place = f" at {error.filename}" if error.filename else ""
        print(f"mpd-agl: {error.strerror or error}{place}. --debug shows where it was raised.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mpd-agl: interrupted. {then or 'The same command starts again.'}", file=sys.stderr)
        return 130
