"""What a person sees of a run: a live display on a terminal, plain lines elsewhere, JSON lines, or only the result."""

import json
import sys
import time
from typing import Any, Literal

from mpd_agl.records.progress import duration
from mpd_agl.train.observe import Display, Progress

Style = Literal["auto", "quiet", "json"]


def build_display(style: Style) -> Display:
    """`auto`: live on a terminal, plain lines elsewhere."""
    if style == "json":
        return JsonLines()
    if style == "quiet":
        return Display()
    return Live() if sys.stdout.isatty() else Lines()


def time_left(done: int, total: int, elapsed_s: float, now: float | None = None) -> str:
    """How many of equal parts are done, how long the rest takes at this pace, and when it ends by the clock.

    >>> time_left(0, 5, 0.0), time_left(5, 5, 60.0)
    ('0 of 5 done', '5 of 5 done')
    >>> time_left(1, 4, 100.0, now=0.0).partition(", until")[0]
    '1 of 4 done, about 5 min 00 s left'
    """
    text = f"{done} of {total} done"
    if not 0 < done < total:
        return text
    left = elapsed_s / done * (total - done)
    at = (time.time() if now is None else now) + left
    shape = "%H:%M" if left < 20 * 3600 else "%a %H:%M"
    return f"{text}, about {duration(left)} left, until {time.strftime(shape, time.localtime(at))}"


def epoch_line(line: dict[str, Any], epochs: int, scored: str) -> str:
    """One epoch in one line."""
    return (
        f"epoch {line['epoch']:>{len(str(epochs))}}/{epochs}  loss {line['train_loss']:.4f}  "
        f"train {100 * line['train_accuracy']:5.2f} %  {scored} {100 * line['test_accuracy']:5.2f} %  "
        f"lr {line['lr']:.4g}  {line['images_per_s']:.0f} images/s"
    )


class Mute(Display):
    """For the ranks that are not the first."""

    def note(self, text: str) -> None:
        """Rank 0 says it."""


class JsonLines(Display):
    """Every line of metrics.jsonl on stdout too."""

    def logged(self, line: dict[str, Any]) -> None:
        """The line itself."""
        print(json.dumps(line), flush=True)


class _WithFigures(Display):
    """Keeps the monitor's figures as text, to be shown once."""

    _figures = ""

    def figures(self, figures: dict[str, float]) -> None:
        """Keep them."""
        self._figures = "".join(f"  {name} {100 * value:.1f} %" for name, value in figures.items())


class Lines(_WithFigures):
    """A line per epoch, and one now and then within a long epoch."""

    every_s = 30.0

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        """Say what runs."""
        super().start(title, epochs, steps_per_epoch, progress, scored)
        self._shown = time.perf_counter()
        at = f", from epoch {progress.epoch + 1}, step {progress.epoch_step + 1}" if progress.step else ""
        print(f"{title}: {epochs} epochs of {steps_per_epoch} steps{at}", flush=True)

    def step(self, progress: Progress) -> None:
        """At most a line in 30 s."""
        if time.perf_counter() - self._shown > self.every_s:
            self._shown = time.perf_counter()
            left = self.left_s(progress)
            print(
                f"  epoch {progress.epoch + 1}, step {progress.epoch_step}/{self.per_epoch}  loss {progress.loss:.4f}  "
                f"train {100 * progress.accuracy:.2f} %  {progress.images_per_s:.0f} images/s{self._figures}"
                + (f"  {duration(left)} left" if left is not None else ""),
                flush=True,
            )

    def logged(self, line: dict[str, Any]) -> None:
        """A line per epoch."""
        if line["log"] == "epoch":
            self._shown = time.perf_counter()
            print(epoch_line(line, self.epochs, self.scored) + self._figures, flush=True)
            self._figures = ""  # the next epoch shows new figures or none, never old ones


class Live(_WithFigures):
    """A progress bar with the present figures under the epochs' lines."""

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        """Open the display."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars

        super().start(title, epochs, steps_per_epoch, progress, scored)
        self._console = Console()
        self._console.print(title, style="bold", highlight=False, markup=False)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
            refresh_per_second=5,
            expand=True,
            transient=True,
        )
        total = epochs * steps_per_epoch
        self._epoch = self._bars.add_task("epoch", total=steps_per_epoch, text="")
        self._all = self._bars.add_task("run", total=total, completed=progress.step, text="")
        self._bars.start()

    def step(self, progress: Progress) -> None:
        """Move the bars."""
        left = self.left_s(progress)
        self._bars.update(
            self._epoch,
            description=f"epoch {progress.epoch + 1}/{self.epochs}",
            completed=progress.epoch_step,
            text=f"loss {progress.loss:.4f}  train {100 * progress.accuracy:.1f} %  "
            f"{progress.images_per_s:.0f} images/s",
        )
        remaining = f"{duration(left)} left" if left is not None else ""
        self._bars.update(self._all, completed=progress.step, text=remaining + self._figures)

    def logged(self, line: dict[str, Any]) -> None:
        """A line per epoch, above the bars."""
        if line["log"] == "epoch":
            self._bars.console.print(epoch_line(line, self.epochs, self.scored), highlight=False, markup=False)
            self._figures = ""

    def note(self, text: str) -> None:
        """A warning, above the bars."""
        if hasattr(self, "_bars"):
            self._bars.console.print(f"! {text}", style="yellow", highlight=False, markup=False)
        else:
            super().note(text)

    def close(self) -> None:
        """Take the bars away; the epochs' lines stay."""
        self._bars.stop()
