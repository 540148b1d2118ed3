"""`mpd-agl launch -- train ...`: a run on several processes, through torchrun with settings that restart cleanly."""

import argparse
import os
import re
import shlex
import sys
import uuid

import torch

from mpd_agl.cli.arguments import Parser
from mpd_agl.cli.options import parse
from mpd_agl.cli.train import prepare
from mpd_agl.errors import InputError
from mpd_agl.train.build import check_processes
from mpd_agl.train.resuming import LAUNCH
from mpd_agl.train.runfolder import RunFolder, check_free
from mpd_agl.train.signals import EXIT_SAVED

SETTINGS = {
    # a store that is shared with the agent keeps a killed rank's keys, and a restart can hang on them
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # seconds that ranks have to save when they are asked to stop
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""The environment of the processes, where the user has not set it otherwise."""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl launch",
        usage="mpd-agl launch [OPTIONS] -- train [TRAIN'S OPTIONS]",
        description="Train on several processes, with torchrun. They share each batch: the run is that of one process. "
        "Processes that die are started again, and the run continues from its newest whole checkpoint.",
    )
    p.add_argument(
        "--nproc", default="auto", metavar="N", help="processes on this node (default auto: one per GPU, else 1)"
    )
    p.add_argument(
        "--nnodes", default="1", metavar="N|MIN:MAX", help="nodes (default 1); give the same command on each"
    )
    p.add_argument(
        "--rdzv-endpoint", default="", metavar="HOST:PORT", help="where the nodes meet: one of them, a free port"
    )
    p.add_argument(
        "--rdzv-id",
        default="",
        metavar="ID",
        help="the job's name, the same on all nodes; the same again continues its run "
        "(default: the SLURM job, else a new one)",
    )
    p.add_argument("--max-restarts", default=3, type=int, metavar="N", help="restarts before giving up (default 3)")
    p.add_argument(
        "--threads",
        default=0,
        type=int,
        metavar="N",
        help="CPU threads of each process (default: the cores, shared out)",
    )
    p.add_argument("--show", action="store_true", help="print the torchrun command and its environment; start nothing")
    return p


def run(argv: list[str]) -> int:
    """Check both command lines, then hand over to torchrun."""
    own, dashes, rest = _split(argv)
    a = parser().parse_args(own)
    if not dashes or rest[:1] != ["train"]:
        got = f"got {' '.join(rest)!r}" if rest else "got none"
        raise InputError(
            f"launch needs a command behind --, {got}. For example: mpd-agl launch --nproc 2 -- train --preset demo."
        )
    job = _named(a) or uuid.uuid4().hex
    processes = _processes(a.nproc)
    environment = {**SETTINGS, "OMP_NUM_THREADS": str(a.threads or max(1, _cores() // processes))}
    arguments = [*_torchrun(a, processes, job), "-m", "mpd_agl", *rest]
    if a.show:
        words = [f"{name}={os.environ.get(name, value)}" for name, value in environment.items()]
        print(shlex.join([*words, "torchrun", *arguments]))
        return 0
    _check(rest[1:], job, processes * int(a.nnodes.partition(":")[0]))
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    return _launch(arguments)


def _split(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], at < len(argv), argv[at + 1 :]


def _processes(text: str) -> int:
    if text == "auto":
        return torch.cuda.device_count() or 1
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise InputError(f"--nproc must be auto or a number from 1 to 1024, got {text!r}. Use one process per GPU.")
    return int(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _named(a: argparse.Namespace) -> str:
    return str(a.rdzv_id) or os.environ.get("SLURM_JOB_ID", "")


def _torchrun(a: argparse.Namespace, processes: int, job: str) -> list[str]:
    """torchrun's own options."""
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", a.nnodes):
        raise InputError(
            f"--nnodes must be a number or a range, got {a.nnodes!r}. For example: --nnodes 4, or --nnodes 2:4."
        )
    alone = a.nnodes in ("1", "1:1")
    if not alone and not a.rdzv_endpoint:
        raise InputError(
            f"--nnodes {a.nnodes} needs --rdzv-endpoint HOST:PORT, a node that all others reach, "
            f"got {a.rdzv_endpoint!r}."
        )
    if not alone and not _named(a):
        raise InputError(
            f"--nnodes {a.nnodes} outside SLURM needs --rdzv-id, the same word on every node, else they never meet. "
            f"For example: --rdzv-id my-run."
        )
    return [
        f"--nnodes={a.nnodes}",
        f"--nproc-per-node={processes}",
        f"--max-restarts={a.max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={a.rdzv_endpoint or 'localhost:0'}",
        f"--rdzv-id={job}",
        *(["--local-addr=localhost"] if alone else []),
    ]


def _check(argv: list[str], job: str, processes: int) -> None:
    """Refuse what every process would refuse, before any is started."""
    options = parse(argv)
    if surplus := sorted(options.flags & {"help", "dry-run"}):
        raise InputError(f"--{surplus[0]} does not train. Use mpd-agl train --{surplus[0]}, without launch.")
    task = prepare(options)
    mark = task.path / LAUNCH
    if task.config is None:
        RunFolder.open(task.path).close()
        return
    check_processes(task.config, processes)
    if not (mark.is_file() and mark.read_text() == job):  # else it is this job's run, to be continued
        check_free(task.path, overwrite="overwrite" in options.flags)


def _launch(arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args
    from torch.distributed.run import run as run_torchrun

    try:
        run_torchrun(parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode not in (2, EXIT_SAVED):
            print(f"mpd-agl: rank {rank} ended with code {failure.exitcode}, and no restart is left.", file=sys.stderr)
            return 1
        code: int = failure.exitcode
        return code
    except SignalException as stop:
        print(f"stopped by {stop.sigval.name}: the processes were asked to save and end.")
        return EXIT_SAVED
    except (RendezvousError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"the processes cannot meet ({reason}). Check --rdzv-endpoint and the network.") from error
    return 0
