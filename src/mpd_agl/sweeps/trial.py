"""One trial of a sweep: an ordinary run whose epochs are reported to the study, and which the pruner may end early."""

from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.sweeps.config import SCORES, Sweep
from mpd_agl.sweeps.optuna_study import open_study, open_trial, tell, unfinished
from mpd_agl.train.observe import Display, Progress
from mpd_agl.train.signals import Stopped


class Pruned(Stopped):
    """The pruner ended the run. The loop has saved it after the epoch that decided."""

    def __init__(self, step: int) -> None:
        super().__init__("the pruner", step)


def run_path(folder: Path, number: int) -> Path:
    """Where a trial's run is."""
    return folder / "trials" / f"trial-{number:04d}"


class Reporting(Display):
    """A display that also reports each epoch's score to the study, and ends the run if the pruner says so."""

    def __init__(self, display: Display, trial: Any, score: str, reported: set[int]) -> None:
        self.display, self.trial, self.score, self.reported = display, trial, score, reported
        for name in ("step", "figures", "note", "close"):
            setattr(self, name, getattr(display, name))

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        """As the display. A run that was killed between its pruning and telling the study ends now."""
        self.epochs = epochs
        if progress.epoch in self.reported:
            self._prune(progress.epoch, progress.step)
        self.display.start(title, epochs, steps_per_epoch, progress, scored)

    def logged(self, line: dict[str, Any]) -> None:
        """Report an epoch's end; one that was reported before the run was killed is not reported again."""
        self.display.logged(line)
        if line["log"] != "epoch":
            return
        epoch: int = line["epoch"]
        if epoch not in self.reported:
            self.trial.report(line[self.score], epoch)
            self.reported.add(epoch)
        self._prune(epoch, line["step"])

    def _prune(self, epoch: int, step: int) -> None:
        if epoch < self.epochs and self.trial.should_prune():
            raise Pruned(step)


def run_trial(sweep: Sweep, folder: Path, number: int, display: Display, changes: dict[str, Any]) -> None:
    """Start the trial's run, or continue it, and tell the study how it ended.

    A run that cannot be trained (a point of the space that makes no configuration, a NaN) is a failed trial and the
    sweep continues; what would hit every trial (no data, a full disk, a signal) is raised, and the trial stays open.
    """
    from mpd_agl.train.runfolder import MARK
    from mpd_agl.train.training import resume, start

    study = open_study(folder, sweep)
    if number not in unfinished(study):  # two jobs of one trial: the first has reported
        return
    trial, point = open_trial(study, sweep, number)
    try:
        config = sweep.config_for(point)
    except InputError as error:
        tell(study, number, "fail", reason=str(error))
        return
    path = run_path(folder, number)
    score = SCORES[sweep.settings.objective]
    frozen = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
    reporting = Reporting(display, trial, score, set(frozen.intermediate_values))
    try:
        if (path / MARK).is_file():
            record = resume(path, changes, reporting)
        else:
            record = start(config, path, reporting)
    except Pruned:
        tell(study, number, "pruned")
        return
    except InputError as error:
        if isinstance(error.__cause__, OSError) or not _failed(path):
            raise
        tell(study, number, "fail", reason=str(error))
        return
    assert record.final is not None
    tell(study, number, "complete", value=float(record.final[score]))


def _failed(path: Path) -> bool:
    """Whether the training itself failed, and not what comes before it."""
    from mpd_agl.records import read_record

    try:
        return read_record(path / "record.json").status == "failed"
    except InputError:
        return False
