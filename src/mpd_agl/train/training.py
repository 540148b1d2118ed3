"""A run from its configuration to its record: start, or continue where it was stopped."""

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpd_agl import records
from mpd_agl.data.options import SplitOptions
from mpd_agl.diagnosis import energy, measure_activity
from mpd_agl.errors import InputError
from mpd_agl.models import Network, save_weights
from mpd_agl.ops import library
from mpd_agl.ops.conv import rule
from mpd_agl.options import part
from mpd_agl.records import RunRecord
from mpd_agl.train import checkpoint
from mpd_agl.train.build import BuiltRun, Sets, build_run, build_test_loader, subset
from mpd_agl.train.config import RunConfig, TrackConfig
from mpd_agl.train.console import Mute
from mpd_agl.train.distributed import ALONE, PeerLost, Ranks
from mpd_agl.train.loop import Trainer
from mpd_agl.train.monitoring import Watch, can_watch
from mpd_agl.train.observe import Display, Observer
from mpd_agl.train.own_network import OwnNetwork
from mpd_agl.train.resolve import to_toml
from mpd_agl.train.resuming import SavedRun, check_same_run, differences, find, restore, sign
from mpd_agl.train.runfolder import RunFolder, check_free, now
from mpd_agl.train.signals import Stopped
from mpd_agl.train.trackers import build_trackers

ENERGY_SAMPLES = 256


def start(
    config: RunConfig,
    path: Path,
    display: Display,
    *,
    overwrite: bool = False,
    ranks: Ranks = ALONE,
    sets: Sets | None = None,
    own: OwnNetwork | None = None,
) -> RunRecord:
    """Train from the beginning, in a new run folder; `sets` and `own` replace the configuration's data and network."""
    if ranks.first:  # before data are read; again when the folder is made
        check_free(path, overwrite=overwrite)
    run = build_run(config, ranks=ranks, sets=sets, own=own)
    with RunFolder.create(path, overwrite=overwrite) if ranks.first else RunFolder(path) as folder:
        return _train(run, folder, display, "started")


def resume(
    path: Path,
    changes: dict[str, Any],
    display: Display,
    *,
    ranks: Ranks = ALONE,
    restarted: bool = False,
    sets: Sets | None = None,
    own: OwnNetwork | None = None,
) -> RunRecord:
    """Continue a run from its newest whole checkpoint; `changes` may touch only what the weights do not depend on.

    `restarted`: a launcher does it by itself. It continues a run that was killed; a run that has failed would only
    fail again.
    """
    with RunFolder.open(path) if ranks.first else RunFolder(path) as folder:
        left = find(folder, changes, display, restarted) if ranks.first else None
        if ranks.world > 1:
            parts = left.to_bytes() if left else (b"", b"")
            left = SavedRun.from_bytes(*(ranks.from_first(part) for part in parts))
        assert left is not None
        if left.record is not None and left.record.status == "finished":
            return left.record
        state = left.saved.state if left.saved else {}
        threads = state.get("threads", 0) if state.get("world", 1) == ranks.world else 0
        run = build_run(left.config, threads=threads, ranks=ranks, sets=sets, own=own)
        if left.record is not None:
            with records.reading(path):
                check_same_run(left.record, run)
        at = left.saved.at.step if left.saved else 0
        return _train(run, folder, display, f"resumed at step {at}", left.saved, left.record)


def _train(
    run: BuiltRun,
    folder: RunFolder,
    display: Display,
    how: str,
    saved: checkpoint.Checkpoint | None = None,
    before: RunRecord | None = None,
) -> RunRecord:
    """Train in an open folder, from the beginning or a checkpoint; `before` is the last process's record."""
    config, ranks = run.config, run.stepper.ranks
    sign(folder, ranks)
    folder.write(folder.config, to_toml(config).encode())
    folder.log(how)
    display = display if ranks.first else Mute()
    record = _first_record(run, folder, display, before)
    observers: list[Observer] = []
    if config.monitor.every and can_watch(run.net):
        observers.append(Watch(run.net, config.monitor.every, steps=config.train.epochs * len(run.train)))
    tracked = config.track if ranks.first else TrackConfig()
    trackers = build_trackers(tracked, folder.path, record.config, saved.at.step if saved else 0, display.note)
    with closing(trackers):
        trainer = Trainer(run, folder, display, observers, trackers)
        if folder.start_metrics(restore(trainer, saved, folder) if saved else 0):
            display.note(f"{folder.path / 'metrics.jsonl'} is shorter than it was: lines before this one are lost.")
        _write(folder, record)
        return _to_the_end(run, trainer, record)


def _conv_rule(config: RunConfig, device: torch.device) -> dict[str, Any] | None:
    """What decides how convolutions are computed; None where all are torch's or event-driven."""
    if config.model.conv_impl != "auto" or config.model.ann or device.type != "cpu" or library.load()[1]:
        return None
    return {"rule": rule.VERSION, "simd": library.level()}


def _first_record(run: BuiltRun, folder: RunFolder, display: Display, before: RunRecord | None) -> RunRecord:
    """The record while the run trains. If conditions differ from the last process's, say so and write it down."""
    config, device, ranks = run.config, run.stepper.device, run.stepper.ranks
    record = RunRecord(
        name=folder.path.name,
        status="running",
        config=config.model_dump(mode="json"),
        code=records.code(),
        versions=records.versions(),
        hardware={
            **records.hardware(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "threads": torch.get_num_threads(),
            "processes": ranks.world,
            "processes_backend": ranks.backend,
            "torch_kernels": torch.backends.cpu.get_cpu_capability(),
            "simd": library.level() if run.backend == "native" else None,
        },
        data=run.facts,
        seeds={"run": config.seed, "split": part(SplitOptions, config.data).split_seed},
        backend=run.backend,
        convs=_conv_rule(config, device),
        network=run.network,
        differences=list(before.differences) if before else [],
        clock={"started": before.clock.get("started", now()) if before else now()},
    )
    if before is not None and (changed := differences(before, record)):
        text = f"resumed under other conditions: {'; '.join(changed)}. The bytes may differ from an undisturbed run's."
        folder.log(text)
        display.note(text)
        record = record.with_(differences=[*record.differences, text])
    return record


def _to_the_end(run: BuiltRun, trainer: Trainer, record: RunRecord) -> RunRecord:
    """Train to the last epoch and write the result, or how the run ended before it."""
    folder, ranks = trainer.folder, run.stepper.ranks
    try:
        with _warnings_as_notes(folder, trainer.display), ranks.guard():
            trainer.fit()
        if ranks.first:
            ema = run.stepper.ema
            trained = run.net if ema is None else ema.net
            _save_weights(trained, folder.path / "model.safetensors")
            record = record.with_(energy=measure_energy(run, trained))
    except PeerLost as error:
        folder.log(f"killed: {error}")  # the record stays "running", as that of a killed run
        raise
    except BaseException as error:
        stopped = isinstance(error, Stopped)
        text = str(error) or type(error).__name__
        folder.log(f"{'stopped' if stopped else 'failed'}: {text}")
        ended = "stopped" if stopped else "failed"
        try:
            failed = {} if stopped else {"failure": text, "failure_code": getattr(error, "code", None)}
            _write(folder, _scored(record, trainer).with_(status=ended, **failed))
        except InputError:
            folder.log("the record could not be written")
        raise
    folder.log("finished")
    done = _scored(record, trainer).with_(status="finished", final=trainer.progress.last)
    _write(folder, done)
    return done


def _scored(record: RunRecord, trainer: Trainer) -> RunRecord:
    progress = trainer.progress
    clock = {**record.clock, "ended": now(), "elapsed_s": round(progress.elapsed_s, 3)}
    return record.with_(best_on_test=progress.best, clock=clock)


@contextmanager
def _warnings_as_notes(folder: RunFolder, display: Display) -> Iterator[None]:
    """What a layer warns of goes to the person and the log as a sentence, not as a line of code."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        folder.log(f"warning: {message}")
        display.note(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def measure_energy(run: BuiltRun, net: nn.Module) -> dict[str, Any] | None:
    """Operations and energy per layer of the trained network on some test samples; None for an ANN or own network."""
    if run.config.model.ann or not isinstance(net, Network):
        return None
    test = run.sets[1]
    chosen = subset(test, min(ENERGY_SAMPLES, len(test)))
    with build_test_loader(run.config, chosen).epoch(0) as batches:
        inputs = [x for x, _ in batches]
    static = inputs[0].dim() == 4
    x = torch.cat(inputs, dim=0 if static else 1).to(run.stepper.device)
    source = f"trained weights, {len(chosen)} test samples"
    return energy(net, measure_activity(net, x), rates_from=source, static_input=static).to_dict()


def _save_weights(net: nn.Module, path: Path) -> None:
    try:
        save_weights(net, path)
    except OSError as error:
        raise records.explain(error, path, "The last checkpoint stands.") from error


def _write(folder: RunFolder, record: RunRecord) -> None:
    folder.write(folder.record, records.canonical(record.to_dict()))
