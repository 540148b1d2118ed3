"""The loop: epochs, steps, evaluation, checkpoints, resume. It knows nothing of what it trains; everything arrives built.

A run is a function of its configuration alone. The state after step s is the same whether the process ran through or was killed and
resumed any number of times: data order and augmentation depend on (seed, epoch, step), and a checkpoint holds the rest.
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.train import checkpoint, finite
from mpd_agl.train.batches import Batches
from mpd_agl.train.config import CheckpointConfig, LoopConfig, OptimConfig
from mpd_agl.train.distributed import EndedTogether
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.observe import Display, Observer
from mpd_agl.train.optim import learning_rate
from mpd_agl.train.optimstate import pack_optimizer, unpack_optimizer
from mpd_agl.train.progress import Progress
from mpd_agl.train.rng import restore_rng, rng_state
from mpd_agl.train.runfolder import RunFolder
from mpd_agl.train.signals import Stopped, StopRequest
from mpd_agl.train.step import NotFinite, Stepper
from mpd_agl.train.trackers import Trackers


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a run needs, built."""

    title: str
    stepper: Stepper
    train: Batches
    test: Batches
    observer: Observer
    display: Display
    trackers: Trackers
    folder: RunFolder
    loop: LoopConfig
    optim: OptimConfig
    saving: CheckpointConfig
    run: str = ""
    """A digest of all that the weights follow from: a checkpoint of another run is not taken for one of this."""


class Trainer:
    """`Trainer(job).fit()` runs, or continues after `restore(checkpoint)`; returns the progress at the end."""

    def __init__(self, job: Job) -> None:
        self.job, self.progress = job, Progress()
        self.net: nn.Module = job.stepper.net
        self.device, self.ranks = job.stepper.device, job.stepper.ranks
        self._stop = StopRequest(patient=bool(self.ranks.launch))
        self._saved_at = self._mark = time.perf_counter()

    def fit(self) -> Progress:
        """Train to the last epoch. `Stopped` after a signal, with everything saved."""
        job, p = self.job, self.progress
        self._mark = self._saved_at = time.perf_counter()
        self.net.train()
        with self._stop:
            job.display.start(job.title, job.loop.epochs, len(job.train), p)
            try:
                while p.epoch < job.loop.epochs:
                    self._epoch()
            finally:
                job.display.close()
        return p

    def _epoch(self) -> None:
        job, p = self.job, self.progress
        lr = learning_rate(job.optim, p.epoch, job.loop.epochs)
        for group in job.stepper.optimizer.param_groups:
            group["lr"] = lr
        began = time.perf_counter()
        with job.train.epoch(p.epoch, p.epoch_step) as batches:
            for x, y in batches:
                self._step(x, y)
                p.epoch_s += time.perf_counter() - began
                job.display.step(p)
                self._end_if_asked()
                if self._due():
                    self.save()
                began = time.perf_counter()
        scores, speed = self._scores()
        p.last = scores
        if p.best is None or scores["test_accuracy"] > p.best["test_accuracy"]:
            p.best = scores
        p.epoch += 1
        p.begin_epoch()
        self._tick()
        self._log({"event": "epoch", "lr": lr, **scores, **speed, "elapsed_s": round(p.elapsed_s, 3)})
        self.save()
        if p.epoch < job.loop.epochs:
            self._end_if_asked()

    def _step(self, x: Tensor, y: Tensor) -> None:
        job, p = self.job, self.progress
        job.observer.before(p.step)
        try:
            result = job.stepper(x.to(self.device), y.to(self.device))
        except (NotFinite, InputError) as error:
            raise self._failure(error, x) from error
        seen = job.observer.after(p.step)
        p.step, p.epoch_step = p.step + 1, p.epoch_step + 1
        p.loss_sum += result.loss * result.count
        p.correct, p.seen = p.correct + result.correct, p.seen + result.count
        if seen is not None:
            job.display.figures(seen.figures)
            self._log({**seen.event, "step": p.step, "epoch": p.epoch + 1})
            for warning in seen.warnings:
                self._log({"event": "warning", "step": p.step, "epoch": p.epoch + 1, **warning})
                job.folder.log(f"warning: {warning['text']}")
                job.display.note(warning["text"])

    def _failure(self, error: Exception, x: Tensor) -> Exception:
        """The end of a run whose step is not finite: all ranks are here, each tells what it saw, rank 0 tells the person."""
        job, p = self.job, self.progress
        own = "the input holds NaN or Inf" if self.ranks.world > 1 and finite.bad(x) else str(error)
        seen: dict[str, int] = {}
        for rank, text in enumerate(self.ranks.texts(own)):
            seen.setdefault(text, rank)
        if not self.ranks.first:
            return EndedTogether(own)
        what = own if len(seen) == 1 else "; ".join(f"rank {rank}: {text.rstrip('.')}" for text, rank in seen.items())
        where = f"epoch {p.epoch + 1}, step {p.epoch_step + 1} of {len(job.train)}"
        kept = checkpoint.positions(job.folder.checkpoints)
        stands = f"checkpoint {kept[-1].folder} stands" if kept else "no checkpoint was written yet"
        return InputError(
            f"training stopped at {where}: {what}. Nothing bad was saved, {stands}. "
            "Try a smaller --optim.lr, --optim.clip_norm 1, or look at the data."
        )

    def _scores(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Of the epoch that has just been trained: its scores, and what depends on the clock."""
        job, p = self.job, self.progress
        began = time.perf_counter()
        net = self.net if job.stepper.ema is None else job.stepper.ema.net
        test = evaluate(
            net,
            job.test,
            self.device,
            autocast=job.stepper.autocast,
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

    def _log(self, event: dict[str, Any]) -> None:
        self.job.folder.log_metrics(event)
        self.job.trackers.log(event)
        self.job.display.event(event)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.progress.elapsed_s += now - self._mark
        self._mark = now

    def _due(self) -> bool:
        saving = self.job.saving
        by_steps = saving.every_steps and self.progress.step % saving.every_steps == 0
        minutes = (time.perf_counter() - self._saved_at) / 60
        return bool(by_steps or (saving.every_minutes and minutes >= saving.every_minutes))

    def _end_if_asked(self) -> None:
        """All ranks end at the same step, whichever was asked to."""
        asked = self.ranks.most(signal.Signals[self._stop.asked] if self._stop.asked else 0)
        if asked:
            self.save()
            raise Stopped(signal.Signals(asked).name, self.progress.step)

    def save(self) -> None:
        """Write a checkpoint of this moment; weights with a NaN are never written. Rank 0 has all there is to save."""
        job, p = self.job, self.progress
        if not self.ranks.first:
            return
        if name := finite.bad_state(self.net):
            raise InputError(
                f"training stopped at epoch {p.epoch + 1}, step {p.epoch_step}: {name} is not finite. Nothing bad was saved. "
                "Try a smaller --optim.lr."
            )
        self._tick()
        tensors: dict[str, Mapping[str, Tensor]] = {
            "model": self.net.state_dict(),
            "optimizer": pack_optimizer(job.stepper.optimizer, self.net),
        }
        if job.stepper.ema is not None:
            tensors["ema"] = job.stepper.ema.net.state_dict()
        state = {
            "run": job.run,
            "progress": p.to_dict(),
            "rng": rng_state(self.device),
            "scaler": job.stepper.scaler.state_dict(),
            "observer": job.observer.state(),
            "threads": torch.get_num_threads(),
            "world": self.ranks.world,
            "metrics_bytes": job.folder.sync_metrics(),
        }
        best = None if p.best is None else checkpoint.Position(p.best["epoch"], p.best["step"])
        checkpoint.save(job.folder.checkpoints, checkpoint.Position(p.epoch, p.step), tensors, state)
        checkpoint.prune(job.folder.checkpoints, job.saving.keep_last, best)
        self._saved_at = time.perf_counter()

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint: weights, optimizer, generators, counters."""
        job = self.job
        if saved.state["run"] != job.run:
            raise InputError("it was written by a run with another configuration")
        self.net.load_state_dict(saved.tensors["model"])
        unpack_optimizer(job.stepper.optimizer, self.net, saved.tensors["optimizer"])
        if job.stepper.ema is not None:
            job.stepper.ema.net.load_state_dict(saved.tensors["ema"])
        job.stepper.scaler.load_state_dict(saved.state["scaler"])
        job.observer.restore(saved.state["observer"])
        restore_rng(saved.state["rng"], self.device)
        self.progress = Progress(**saved.state["progress"])
