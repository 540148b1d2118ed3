"""Optuna behind a sweep: a journal of JSON lines in the sweep's folder, a sampler and a pruner by name.

Trial k's sampler is seeded by (seed, k), so a sweep that was stopped continues with the trials that it would have had.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mpd_agl.errors import InputError
from mpd_agl.records import lock_file
from mpd_agl.sweeps.config import Sweep
from mpd_agl.sweeps.search_space import Choices, Space, Value


def load_optuna() -> Any:
    """Optuna, or the sentence that says how to install it."""
    try:
        import optuna
    except ImportError:
        raise InputError(
            'sweeps need Optuna, which is not installed here. Install it with: pip install "mpd-agl[optuna]".'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class JournalLock:
    """Optuna's lock on its journal, by the system, which releases it when a process is killed.

    A torn last line is cut off.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._path = journal, journal.with_name(f".{journal.name}.lock")
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for it."""
        self._file = self._path.open("ab")
        lock_file(self._file, wait=True)
        if self._journal.is_file():
            with self._journal.open("r+b") as file:
                text = file.read()
                if not text.endswith(b"\n"):
                    file.truncate(text.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let go."""
        assert self._file is not None
        self._file.close()


def open_study(folder: Path, sweep: Sweep) -> Any:
    """The sweep's study, made where there is none."""
    optuna = load_optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = folder / "journal.jsonl"
    lock = JournalLock(journal)
    try:
        lock.acquire()
        lock.release()
        backend = JournalFileBackend(str(journal), lock_obj=lock)  # type: ignore[arg-type,unused-ignore]
        return optuna.create_study(
            storage=JournalStorage(backend),
            study_name="sweep",
            direction="maximize" if sweep.maximize else "minimize",
            load_if_exists=True,
            pruner=_pruner(optuna, sweep),
        )
    except OSError as error:
        raise InputError(f"cannot write {journal}: {error.strerror}. Choose another --sweeps-dir.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the sweep's journal {journal} is damaged ({error}). "
            "Start a new sweep with another --name; the runs of this one are whole."
        ) from None


def _pruner(optuna: Any, sweep: Sweep) -> Any:
    s = sweep.settings
    if s.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=s.prune_after_trials, n_warmup_steps=s.prune_after_epochs)
    return optuna.pruners.NopPruner()


def _sampler(optuna: Any, sweep: Sweep, number: int) -> Any:
    seed = (sweep.settings.seed * 1_000_003 + number) % 2**32
    if sweep.settings.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def next_trial(study: Any, sweep: Sweep) -> int:
    """Open a new trial; its number."""
    optuna = load_optuna()
    waiting = optuna.trial.TrialState.WAITING
    trials = study.get_trials(deepcopy=False)
    number = sum(t.state != waiting for t in trials)
    if sweep.settings.sampler == "grid" and len(trials) == number:
        study.enqueue_trial(sweep.grid()[number])
    study.sampler = _sampler(optuna, sweep, number)
    return int(study.ask().number)


def open_trial(study: Any, sweep: Sweep, number: int) -> tuple[Any, dict[str, Value]]:
    """A trial that has not ended, and its point in the space: as it was drawn, or drawn now."""
    optuna = load_optuna()
    frozen = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
    study.sampler = _sampler(optuna, sweep, number)
    trial = optuna.trial.Trial(study, frozen._trial_id)
    return trial, _suggest(trial, sweep.space)


def _suggest(trial: Any, space: Space) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for name, entry in space.items():
        if isinstance(entry, Choices):
            point[name] = trial.suggest_categorical(name, entry.values)
        elif entry.whole:
            point[name] = trial.suggest_int(name, int(entry.low), int(entry.high), log=entry.log)
        else:
            point[name] = trial.suggest_float(name, entry.low, entry.high, log=entry.log)
    return point


def unfinished(study: Any) -> list[int]:
    """Trials that began and have not ended, oldest first."""
    running = load_optuna().trial.TrialState.RUNNING
    return [t.number for t in study.get_trials(deepcopy=False) if t.state == running]


def begun(study: Any) -> int:
    """How many trials have begun."""
    waiting = load_optuna().trial.TrialState.WAITING
    return sum(t.state != waiting for t in study.get_trials(deepcopy=False))


def tell(study: Any, number: int, outcome: str, value: float | None = None, reason: str = "") -> None:
    """End a trial: `complete` with its value, `pruned`, or `fail` with a reason."""
    state = load_optuna().trial.TrialState[outcome.upper()]
    if reason:
        frozen = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
        study._storage.set_trial_user_attr(frozen._trial_id, "reason", reason)
    study.tell(number, value, state=state)


def rows(study: Any, sweep: Sweep) -> list[dict[str, Any]]:
    """The trials as plain values, in order of their numbers."""
    return [
        {
            "trial": t.number,
            "state": t.state.name.lower(),
            "value": t.value,
            "epochs": max(t.intermediate_values, default=0),
            "params": {n: t.params[n] for n in sweep.space if n in t.params},
            "reason": t.user_attrs.get("reason"),
        }
        for t in study.get_trials(deepcopy=False)
    ]


def best(table: list[Mapping[str, Any]] | list[dict[str, Any]], sweep: Sweep) -> Mapping[str, Any] | None:
    """The best of the trials that went to their end; of equals, the first."""
    done = [row for row in table if row["state"] == "complete"]
    sign = -1 if sweep.maximize else 1
    return min(done, key=lambda row: (sign * row["value"], row["trial"]), default=None)
