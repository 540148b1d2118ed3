"""Where a sweep's trials run if not in its own process: in processes of this machine, or on SLURM through submitit.

A job is the command `mpd-agl sweep FOLDER --trial N`. Its result is in the study and in the run's folder; nothing
that a job leaves is unpickled here.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.records import hardware
from mpd_agl.sweeps.trial import run_path
from mpd_agl.train.runfolder import in_use

SLURM_WORDS: dict[str, tuple[str, Callable[[str], str | int | float]]] = {
    "partition": ("slurm_partition", str),
    "account": ("slurm_account", str),
    "qos": ("slurm_qos", str),
    "constraint": ("slurm_constraint", str),
    "gpus": ("gpus_per_node", int),
    "cpus": ("cpus_per_task", int),
    "memory": ("mem_gb", float),
    "hours": ("timeout_min", lambda hours: max(1, round(60 * float(hours)))),
}
"""A word of --slurm, submitit's name for it, and its type. `jobs`, how many at a time, is not submitit's."""
NUMBERS: dict[str, Callable[[str], float]] = {"gpus": int, "cpus": int, "jobs": int, "hours": float, "memory": float}
"""Words of --slurm that take a number."""
Done = Callable[[], bool]
"""Asks whether a job has ended, however."""


def command(folder: Path, number: int) -> list[str]:
    """The command line of a trial."""
    return [sys.executable, "-m", "mpd_agl", "sweep", str(folder.resolve()), "--trial", str(number)]


class Processes:
    """Trials as processes of this machine; each takes its share of the cores, and `limit` run at a time."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._children: list[subprocess.Popen[bytes]] = []

    def submit(self, number: int) -> Done:
        """Start a process."""
        share = str(max(1, hardware()["cores"] // self.limit))
        with self.log(number).open("ab") as log:
            child = subprocess.Popen(
                command(self.folder, number),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": share, **os.environ},
                start_new_session=True,  # Ctrl-C reaches it once, through us
            )
        self._children.append(child)
        return lambda: child.poll() is not None

    def attach(self, number: int) -> Done | None:
        """The job of a trial that an earlier process of this sweep submitted, if it may still be under way."""
        run = run_path(self.folder, number)
        return (lambda: not in_use(run)) if in_use(run) else None

    def log(self, number: int) -> Path:
        """Where a trial's output is."""
        return self.folder / "trials" / f"trial-{number:04d}.log"

    def interrupt(self) -> bool:
        """The sweep ends: each trial saves and ends. Returns whether they were ended."""
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            child.wait()
        return True


class Submitted(Processes):
    """Jobs of SLURM, or of submitit's local executor."""

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        try:
            import submitit  # noqa: F401
        except ImportError:
            raise InputError(
                '--slurm needs submitit, which is not installed here. Install it with: pip install "mpd-agl[submitit]".'
            ) from None
        super().__init__(folder, int(words.get("jobs", "4")))
        self._local = "local" in words
        if not self._local and shutil.which("srun") is None:
            raise InputError(
                "--slurm finds no `srun` here. Run it on a machine of a SLURM cluster, or use --workers N on this one."
            )
        given = {w: v for w, v in words.items() if w in SLURM_WORDS}
        options = {SLURM_WORDS[w][0]: SLURM_WORDS[w][1](v) for w, v in given.items()}
        self._options = {k: v for k, v in options.items() if not (self._local and k.startswith("slurm_"))}
        self._executor: Any = None

    def submit(self, number: int) -> Done:
        """Hand it to the scheduler."""
        import submitit

        try:
            if self._executor is None:
                cluster = "local" if self._local else "slurm"
                self._executor = submitit.AutoExecutor(self.folder / "jobs", cluster=cluster)
                self._executor.update_parameters(**{"timeout_min": 240, "name": "mpd-agl", **self._options})
            job = self._executor.submit(run_command, command(self.folder, number))
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"SLURM took no job: {reason}. Check the words of --slurm.") from None
        self._id(number).write_text(f"{job.job_id}\n", encoding="utf-8")
        return job.done  # type: ignore[no-any-return]

    def attach(self, number: int) -> Done | None:
        """A job that waits in SLURM's queue or runs."""
        import submitit

        if (running := super().attach(number)) is not None or self._local:
            return running
        try:
            job_id = self._id(number).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        job: Any = submitit.SlurmJob(folder=self.folder / "jobs", job_id=job_id)
        return None if job.done() else job.done

    def log(self, number: int) -> Path:
        """The job's errors."""
        job_id = self._id(number).read_text(encoding="utf-8").strip()
        return self.folder / "jobs" / f"{job_id}_0_log.err"

    def _id(self, number: int) -> Path:
        return self.folder / "trials" / f"trial-{number:04d}.job"

    def interrupt(self) -> bool:
        """Jobs continue; the same command finds them."""
        return False


def run_command(argv: list[str]) -> int:
    """In the job: run a trial. SLURM's signal that the time is up becomes SIGTERM, after which a run saves and ends."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the child inherits this, because the scheduler signals it as well
    with subprocess.Popen(argv) as child:
        signal.signal(signal.SIGUSR2, lambda *_: child.terminate())
        return child.wait()


def parse_slurm(text: str) -> dict[str, str]:
    """`partition=gpu,gpus=1,hours=4` as words; `local` alone is submitit's local executor.

    >>> parse_slurm("partition=gpu,gpus=1,hours=0.5,jobs=8")
    {'partition': 'gpu', 'gpus': '1', 'hours': '0.5', 'jobs': '8'}
    """
    words: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        word, _, value = part.partition("=")
        if word not in (*SLURM_WORDS, "jobs", "local"):
            raise InputError(f"--slurm: {unknown_name('word', word, (*SLURM_WORDS, 'jobs', 'local'))}")
        if not value and word != "local":
            raise InputError(f"--slurm: {word} has no value. For example: --slurm partition=gpu,gpus=1,hours=4.")
        try:
            if word in NUMBERS and not 0 < NUMBERS[word](value) < float("inf") and (word, value) != ("gpus", "0"):
                raise ValueError
        except ValueError:
            raise InputError(f"--slurm: {word} must be a number over 0, got {value!r}.") from None
        words[word] = value
    if not words:
        raise InputError("--slurm takes words like partition=gpu,gpus=1,hours=4, or local, got none.")
    return words
