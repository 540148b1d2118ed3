"""One trial of a sweep: an ordinary run in an ordinary run folder, whose epochs are reported and which may be ended early."""

from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.sweeps.config import SCORES, Sweep
from mpd_agl.sweeps.optuna_study import open_study, open_trial, tell, unfinished
from mpd_agl.train.observe import Display
from mpd_agl.train.progress import Progress
from mpd_agl.train.signals import Stopped


class Pruned(Stopped):
    """The pruner ended the run: its last epoch is in its metrics, and no checkpoint is written for it."""

    def __init__(self, step: int) -> None:
        super().__init__("the pruner", step)


def run_path(folder: Path, number: int) -> Path:
    """Where a trial's run is."""
    return folder / "trials" / f"trial-{number:04d}"


class Reporting:
    """A display that also reports each epoch's score to the study, and ends the run if the pruner says so."""

    def __init__(self, display: Display, trial: Any, score: str, reported: set[int]) -> None:
        self.display, self.trial, self.score, self.reported = display, trial, score, reported
        self._epochs = 0

    @property
    def scored(self) -> str:
        """As the display."""
        return self.display.scored

    @scored.setter
    def scored(self, word: str) -> None:
        self.display.scored = word

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress) -> None:
        """As the display."""
        self._epochs = epochs
        self.display.start(title, epochs, steps_per_epoch, progress)

    def step(self, progress: Progress) -> None:
        """As the display."""
        self.display.step(progress)

    def figures(self, figures: dict[str, float]) -> None:
        """As the display."""
        self.display.figures(figures)

    def event(self, event: dict[str, Any]) -> None:
        """Report an epoch's end; one that was reported before the run was killed is not reported again."""
        self.display.event(event)
        if event["event"] != "epoch":
            return
        epoch: int = event["epoch"]
        if epoch not in self.reported:
            self.trial.report(event[self.score], epoch)
            self.reported.add(epoch)
        if epoch < self._epochs and self.trial.should_prune():
            raise Pruned(event["step"])

    def note(self, text: str) -> None:
        """As the display."""
        self.display.note(text)

    def close(self) -> None:
        """As the display."""
        self.display.close()


def run_trial(sweep: Sweep, folder: Path, number: int, display: Display, changes: dict[str, Any]) -> None:
    """Start the trial's run, or continue it, and tell the study how it ended.

    A run that cannot be trained (a point of the space that makes no configuration, a NaN) is a failed trial and the sweep goes on; what
    would hit every trial (no data, a full disk, a signal) is raised, and the trial stays open.
    """
    from mpd_agl.runs.training import resume, start
    from mpd_agl.train.runfolder import MARK

    study = open_study(folder, sweep)
    if number not in unfinished(study):  # two jobs of one trial: the first has told
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
