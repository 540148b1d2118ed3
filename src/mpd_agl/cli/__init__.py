"""The command line: one file per subcommand, imported only when it is asked for.

Each subcommand's module has `run(argv) -> int`. A user's mistake raises `InputError`; it is printed as one sentence,
without a traceback.
"""

import os
import sys
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
    "reproduce": "the paper's tables and figures, its numbers beside ours; continues where it was stopped",
    "runs": "list runs: method, data, accuracy, time",
    "sweep": "search over fields of a configuration with Optuna; resume, pruning, SLURM",
    "info": "versions, backends that work here and why others do not, presets",
    "completion": "print a completion script for bash or zsh",
    "diagnose": "what ails a spiking network of yours, by layer, with the line that cures it",
    "energy": "count operations and energy per layer, the ANN beside it",
    "import-weights": "read a foreign .pt file's tensors, and nothing else, into a safetensors file",
    "export": "write a run's network as ONNX or NIR",
    "bench": "time and memory of training and inference, side by side with other libraries",
    "data": "list, fetch, verify and show data sets",
}


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
  mpd-agl diagnose module:factory         why it does not learn, and the line that cures it
  mpd_agl.adapt(net, images)              in Python: fits scale and width of a SpikingJelly, snnTorch or Norse net

The paper
  mpd-agl reproduce --list                its tables and figures, what each costs on this machine

`mpd-agl --help` lists every command, `mpd-agl COMMAND --help` its options, `mpd-agl info` what works here.
"""


INTERRUPTED = {
    "data": "What was downloaded is kept: the same command continues.",
    "train": "The last checkpoint stands: `mpd-agl train --resume RUN` continues, `mpd-agl runs` lists the runs.",
    "launch": "The last checkpoint stands: the same command with --resume RUN continues.",
    "reproduce": "Finished runs are kept: the same command continues.",
    "sweep": "Finished trials are kept: the same command continues.",
}
"""How to go on after Ctrl-C, by command; for the others nothing is kept."""


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
    try:
        if args[0] not in COMMANDS:
            raise unknown_name("command", args[0], COMMANDS)
        code: int = import_module(f"mpd_agl.cli.{args[0].replace('-', '_')}").run(args[1:])
        return code
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
        print(f"mpd-agl: {error.strerror or error}{place}. --debug tells where it came from.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        then = INTERRUPTED.get(args[0], "The same command starts again.")
        print(f"mpd-agl: interrupted. {then}", file=sys.stderr)
        return 130
