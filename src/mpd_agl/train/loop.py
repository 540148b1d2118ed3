"""The loop: epochs, steps, evaluation, checkpoints, resume. It knows nothing of what it trains.

A run is a function of its configuration alone. The state after step s is the same whether the process ran through or
was killed and resumed any number of times: data order and augmentation depend on (seed, epoch, step), and a
checkpoint holds the rest.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.train import checkpoint
from mpd_agl.train.build import BuiltRun
from mpd_agl.train.distributed import EndedTogether
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.observe import Display, Observer, Progress
from mpd_agl.train.optim import learning_rate, pack_optimizer, unpack_optimizer
from mpd_agl.train.rng import restore_rng, rng_state
from mpd_agl.train.runfolder import RunFolder
from mpd_agl.train.signals import Stopped, StopRequest
from mpd_agl.train.step import NotFinite, bad, bad_state
from mpd_agl.train.trackers import Trackers


class Trainer:
    """`Trainer(run, folder, display).fit()` trains, or continues after `restore(checkpoint)`."""

    def __init__(
        self,
        run: BuiltRun,
        folder: RunFolder,
        display: Display,
        observers: Sequence[Observer] = (),
        trackers: Trackers | None = None,
    ) -> None:
        self.run, self.folder, self.display, self.observers = run, folder, display, observers
        self.trackers = trackers or Trackers({}, display.note)
        self.stepper, self.ranks, self.net = run.stepper, run.stepper.ranks, run.stepper.net
        self.device = self.stepper.device
        self.progress = Progress()
        self._stop = StopRequest(patient=bool(self.ranks.launch))
        self._saved_at = self._mark = time.perf_counter()

    def fit(self) -> Progress:
        """Train to the last epoch. `Stopped` after a signal, with everything saved."""
        run, p, epochs = self.run, self.progress, self.run.config.train.epochs
        self._mark = self._saved_at = time.perf_counter()
        self.net.train()
        with self._stop:
            self.display.start(run.title, epochs, len(run.train), p, run.scored)
            try:
                while p.epoch < epochs:
                    self._epoch(epochs)
            finally:
                self.display.close()
        return p

    def _epoch(self, epochs: int) -> None:
        p = self.progress
        lr = learning_rate(self.run.config.optim, p.epoch, epochs)
        began = time.perf_counter()
        with self.run.train.epoch(p.epoch, p.epoch_step) as batches:
            for x, y in batches:
                self._step(x, y)
                p.epoch_s += time.perf_counter() - began
                self.display.step(p)
                self._end_if_asked()
                if self._due():
                    self.save()
                began = time.perf_counter()
        self._read()
        scores, speed = self._scores()
        p.last = scores
        if p.best is None or scores["test_accuracy"] > p.best["test_accuracy"]:
            p.best = scores
        p.epoch += 1
        p.begin_epoch()
        self._tick()
        try:
            self._log({"log": "epoch", "lr": lr, **scores, **speed, "elapsed_s": round(p.elapsed_s, 3)})
        except Stopped:  # a display ends the run here, as a sweep's pruner does: the epoch is complete and is kept
            self.save()
            raise
        self.save()
        if p.epoch < epochs:
            self._end_if_asked()

    def _step(self, x: Tensor, y: Tensor) -> None:
        p = self.progress
        looking = [observer.before(p.step) for observer in self.observers]
        train = self.run.config.train
        lr = learning_rate(self.run.config.optim, p.epoch, train.epochs, p.epoch_step / len(self.run.train))
        for group in self.stepper.optimizer.param_groups:
            group["lr"] = lr
        try:
            done = p.step / max(1, train.epochs * len(self.run.train))
            self.stepper.step(x.to(self.device), y.to(self.device), done)
        except (
            InputError
        ) as error:  # a layer refuses what it is given; where ranks share a batch, it does so on all of them
            own = "the input holds NaN or Inf" if self.ranks.world > 1 and bad(x) else str(error).rstrip(".")
            raise self._failure(own, p.epoch_step + 1) from error
        p.step, p.epoch_step = p.step + 1, p.epoch_step + 1
        if any(looking) or self.stepper.unread >= self.stepper.read_every:
            self._read()
        for observer in self.observers:
            if (seen := observer.after(p.step - 1)) is None:
                continue
            self.display.figures(seen.figures)
            self._log({**seen.line, "step": p.step, "epoch": p.epoch + 1})
            for warning in seen.warnings:
                self._log({"log": "warning", "step": p.step, "epoch": p.epoch + 1, **warning})
                self.folder.log(f"warning: {warning['text']}")
                self.display.note(warning["text"])

    def _read(self) -> None:
        """Take the results of the steps since the last reading into the epoch's sums."""
        p = self.progress
        try:
            results = self.stepper.read()
        except NotFinite as error:
            raise self._failure(str(error), p.epoch_step - error.ago) from error
        for result in results:
            p.loss_sum += result.loss * result.count
            p.correct, p.seen = p.correct + result.correct, p.seen + result.count

    def _failure(self, own: str, step: int) -> Exception:
        """The end of a run at a bad step: all ranks are here, each says what it saw, rank 0 informs the person."""
        seen: dict[str, int] = {}
        for rank, text in enumerate(self.ranks.texts(own)):
            seen.setdefault(text, rank)
        if not self.ranks.first:
            return EndedTogether(own)
        what = own if len(seen) == 1 else "; ".join(f"rank {rank}: {text}" for text, rank in seen.items())
        kept = checkpoint.positions(self.folder.checkpoints)
        stands = f"checkpoint {kept[-1].folder} stands" if kept else "no checkpoint was written yet"
        where = f"epoch {self.progress.epoch + 1}, step {step} of {len(self.run.train)}"
        return InputError(
            f"training stopped at {where}: {what}. Nothing bad was saved, {stands}. "
            "Try a smaller --optim.lr, --optim.clip_norm 1, or look at the data.",
            "not-finite",
        )

    def _scores(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Of the epoch that has just been trained: its scores, and what depends on the clock."""
        p, stepper = self.progress, self.stepper
        began = time.perf_counter()
        test = evaluate(
            self.net if stepper.ema is None else stepper.ema.net,
            self.run.test,
            self.device,
            autocast=stepper.autocast,
            between=self._end_if_asked,
            ranks=self.ranks,
        )
        scores = {
            "epoch": p.epoch + 1,
            "step": p.step,
            "train_loss": p.loss,
            "train_accuracy": p.accuracy,
            "test_loss": test.loss,
            "test_accuracy": test.accuracy,
        }
        test_s = time.perf_counter() - began
        return scores, {
            "images_per_s": round(p.images_per_s, 1),
            "train_s": round(p.epoch_s, 3),
            "test_s": round(test_s, 3),
        }

    def _log(self, line: dict[str, Any]) -> None:
        self.folder.log_metrics(line)
        self.trackers.log(line)
        self.display.logged(line)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.progress.elapsed_s += now - self._mark
        self._mark = now

    def _due(self) -> bool:
        saving = self.run.config.checkpoint
        by_steps = saving.every_steps and self.progress.step % saving.every_steps == 0
        minutes = (time.perf_counter() - self._saved_at) / 60
        # clocks differ, so the ranks agree on it: a save reads the steps, which all ranks do together
        return bool(self.ranks.most(bool(by_steps or (saving.every_minutes and minutes >= saving.every_minutes))))

    def _end_if_asked(self) -> None:
        """End all ranks at the same step, whichever of them was asked to."""
        asked = self.ranks.most(signal.Signals[self._stop.asked] if self._stop.asked else 0)
        if asked:
            self.save()
            raise Stopped(signal.Signals(asked).name, self.progress.step)

    def save(self) -> None:
        """Write a checkpoint of this moment; weights with a NaN are never written. Rank 0 has all there is to save."""
        p, stepper = self.progress, self.stepper
        self._read()
        self._saved_at = time.perf_counter()
        if not self.ranks.first:
            return
        if name := bad_state(self.net):
            raise InputError(
                f"training stopped at epoch {p.epoch + 1}, step {p.epoch_step}: {name} is not finite. "
                "Nothing bad was saved. Try a smaller --optim.lr.",
                "not-finite",
            )
        self._tick()
        tensors: dict[str, Mapping[str, Tensor]] = {
            "model": self.net.state_dict(),
            "optimizer": pack_optimizer(stepper.optimizer, self.net, stepper.objective),
        }
        if own := stepper.objective.state_dict():
            tensors["objective"] = own
        if stepper.ema is not None:
            tensors["ema"] = stepper.ema.net.state_dict()
        state = {
            "run": self.run.digest,
            "progress": p.to_dict(),
            "rng": rng_state(self.device),
            "scaler": stepper.scaler.state_dict(),
            "observers": [observer.state() for observer in self.observers],
            "threads": torch.get_num_threads(),
            "world": self.ranks.world,
            "metrics_bytes": self.folder.sync_metrics(),
        }
        best = None if p.best is None else checkpoint.Position(p.best["epoch"], p.best["step"])
        checkpoint.save(self.folder.checkpoints, checkpoint.Position(p.epoch, p.step), tensors, state)
        checkpoint.prune(self.folder.checkpoints, self.run.config.checkpoint.keep_last, best)

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint: weights, optimizer, generators, counters."""
        if saved.state["run"] != self.run.digest:
            raise InputError(
                "it was written by a run with another configuration, or by a rule with other constants", "other-run"
            )
        stepper = self.stepper
        self.net.load_state_dict(saved.tensors["model"])
        unpack_optimizer(stepper.optimizer, self.net, saved.tensors["optimizer"], stepper.objective)
        stepper.objective.load_state_dict(saved.tensors.get("objective", {}))
        if stepper.ema is not None:
            stepper.ema.net.load_state_dict(saved.tensors["ema"])
        stepper.scaler.load_state_dict(saved.state["scaler"])
        for observer, state in zip(self.observers, saved.state["observers"], strict=True):
            observer.restore(state)
        restore_rng(saved.state["rng"], self.device)
        self.progress = Progress(**saved.state["progress"])
