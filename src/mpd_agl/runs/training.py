"""A run from its configuration to its record: start, or continue where it was stopped."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpd_agl import records
from mpd_agl.analysis import count_operations, energy, measure_activity
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.runs import build
from mpd_agl.runs.compiling import compile_first
from mpd_agl.runs.config import FREE_ON_RESUME, RunConfig, check_processes
from mpd_agl.runs.conv_choices import ConvChoices
from mpd_agl.runs.resolve import flatten, to_toml
from mpd_agl.runs.resuming import Found, differences, find, restore, sign
from mpd_agl.runs.monitoring import build_watch
from mpd_agl.kernels import reuse_pages
from mpd_agl.kernels.native import level
from mpd_agl.models import Network, save_weights
from mpd_agl.records import RunRecord
from mpd_agl.train import checkpoint
from mpd_agl.train.config import TrackConfig
from mpd_agl.train.console import Mute
from mpd_agl.train.disk import explain
from mpd_agl.train.distributed import ALONE, Elsewhere, PeerLost, Ranks
from mpd_agl.train.loop import Job, Trainer
from mpd_agl.train.observe import Display, Observer
from mpd_agl.train.progress import Progress
from mpd_agl.train.runfolder import RunFolder, now
from mpd_agl.train.signals import Stopped
from mpd_agl.train.trackers import build_trackers

ENERGY_SAMPLES = 256


@dataclass(frozen=True)
class Plan:
    """The parts of a run that stand before its folder is touched: bad input ends here."""

    config: RunConfig
    device: torch.device
    train: ArraySet
    test: ArraySet
    net: Network
    backend: str
    ranks: Ranks


def plan(config: RunConfig, threads: int = 0, ranks: Ranks = ALONE) -> Plan:
    """Load the data and build the network."""
    reuse_pages()
    check_processes(config, ranks.world)
    device = build.choose_device(ranks.device(config.train.device))
    build.set_up_torch(config, device, threads or config.train.threads)
    backend = build.backend_that_runs(config, device)
    with ranks.in_turn():
        train, test = build.build_data(config, "train"), build.build_data(config, build.scored_split(config))
    build.build_loaders(config, train, test, ranks)
    net = build.network_for(config, train).to(device)
    return Plan(config, device, train, test, net, backend, ranks)


def start(
    config: RunConfig, path: Path, display: Display, *, overwrite: bool = False, ranks: Ranks = ALONE
) -> RunRecord:
    """Train from the beginning, in a new run folder."""
    made = plan(config, ranks=ranks)
    with RunFolder.create(path, overwrite=overwrite) if ranks.first else Elsewhere(path) as folder:
        sign(folder, ranks)
        folder.write(folder.config, to_toml(config).encode())
        folder.log("started")
        return _train(made, folder, display)


def resume(
    path: Path, changes: dict[str, Any], display: Display, *, ranks: Ranks = ALONE, restarted: bool = False
) -> RunRecord:
    """Continue a run where its newest whole checkpoint stands; `changes` may touch only what the weights do not depend on.

    `restarted`: a launcher does it by itself; a run that has failed, not been killed, would only fail again.
    """
    with RunFolder.open(path) if ranks.first else Elsewhere(path) as folder:
        parts = find(folder, changes, display, restarted).to_bytes() if ranks.first and ranks.world > 1 else (b"", b"")
        if ranks.world > 1:
            found = Found.from_bytes(*(ranks.from_first(part) for part in parts))
        else:
            found = find(folder, changes, display, restarted)
        config, record, saved = found.config, found.record, found.saved
        if record is not None and record.status == "finished":
            return record
        same = saved is not None and saved.state.get("world", 1) == ranks.world
        made = plan(config, threads=saved.state.get("threads", 0) if saved and same else 0, ranks=ranks)
        if record is not None:
            _check_same_backend(record, made)
            with records.reading(path):
                build.check_same_data(record.data, build.data_facts(made.train, made.test))
        sign(folder, ranks)
        folder.write(folder.config, to_toml(config).encode())
        folder.log(f"resumed at step {saved.at.step if saved else 0}")
        return _train(made, folder, display, saved, record)


def _check_same_backend(record: RunRecord, made: Plan) -> None:
    """Another backend computes the same function with other roundings: not the same run."""
    if record.backend != made.backend:
        raise InputError(
            f"the run began with backend {record.backend}, and here model.backend {made.config.model.backend!r} is {made.backend}. "
            "`mpd-agl info` tells why; make that backend work, or start a new run with another --name."
        )


def _digest(made: Plan) -> str:
    """Of all that the weights follow from: configuration, backend, samples."""
    fixed = {k: v for k, v in flatten(made.config.model_dump(mode="json")).items() if k not in FREE_ON_RESUME}
    facts = build.data_facts(made.train, made.test)
    data = {split: {k: v for k, v in facts[split].items() if k != "source"} for split in ("train", "test")}
    return hashlib.sha256(records.canonical([fixed, made.backend, data])).hexdigest()


def _train(
    made: Plan,
    folder: RunFolder,
    display: Display,
    saved: checkpoint.Checkpoint | None = None,
    before: RunRecord | None = None,
) -> RunRecord:
    """From the beginning, or from a checkpoint; `before` is the record that the run's last process left."""
    config, net, ranks = made.config, made.net, made.ranks
    display = display if ranks.first else Mute()
    display.scored = build.scored_split(config)
    record = RunRecord(
        name=folder.path.name,
        status="running",
        config=config.model_dump(mode="json"),
        code=records.code(),
        versions=records.versions(),
        hardware={
            **records.hardware(),
            "device": torch.cuda.get_device_name(made.device) if made.device.type == "cuda" else str(made.device),
            "threads": torch.get_num_threads(),
            "processes": ranks.world,
            "processes_backend": ranks.backend,
            "torch_kernels": torch.backends.cpu.get_cpu_capability(),
            "simd": level() if made.backend == "native" else None,
        },
        data=build.data_facts(made.train, made.test),
        seeds={"run": config.seed, "split": config.data.split_seed},
        backend=made.backend,
        network={
            "parameters": sum(p.numel() for p in net.parameters()),
            "macs_per_step": sum(layer.macs for layer in count_operations(net)),
        },
        differences=list(before.differences) if before else [],
        clock={"started": before.clock.get("started", now()) if before else now()},
    )
    if before is not None and (changed := differences(before, record)):
        text = f"resumed under other conditions: {'; '.join(changed)}. The bytes may differ from an undisturbed run's."
        folder.log(text)
        display.note(text)
        record = record.with_(differences=[*record.differences, text])
    train, test = build.build_loaders(config, made.train, made.test, ranks)
    if made.backend == "compiled":
        compile_first(net, train, made.device, config.train.accumulate, display.note)
    settings = config.model_dump(mode="json")
    tracked = config.track if ranks.first else TrackConfig()
    trackers = build_trackers(tracked, folder.path, settings, saved.at.step if saved else 0, display.note)
    stepper = build.build_stepper(config, net, made.device, ranks)
    observer: Observer = build_watch(
        net, config.monitor, spiking=not config.model.ann, steps=config.train.epochs * len(train)
    )
    choices = None
    if config.model.conv_impl == "auto":
        nets = [net] if stepper.ema is None else [net, stepper.ema.net]
        observer = choices = ConvChoices(nets, observer, folder.path)
    trainer = Trainer(
        Job(
            title=title(config, record),
            stepper=stepper,
            train=train,
            test=test,
            observer=observer,
            display=display,
            trackers=trackers,
            folder=folder,
            loop=config.train,
            optim=config.optim,
            saving=config.checkpoint,
            run=_digest(made),
        )
    )
    try:
        if folder.start_metrics(restore(trainer, saved, folder) if saved else 0):
            display.note(f"{folder.path / 'metrics.jsonl'} is shorter than it was: events before this are lost.")
    except InputError:
        trackers.close()
        raise
    _write(folder, record)
    try:
        with _warnings_as_notes(folder, display), ranks.guard():
            trainer.fit()
        if ranks.first:
            ema = trainer.job.stepper.ema
            trained = net if ema is None else ema.net
            _save_weights(trained, folder.path / "model.safetensors")
            record = record.with_(energy=measure_energy(made, trained))
    except PeerLost as error:
        folder.log(f"killed: {error}")  # the record stays "running": it is a killed run's
        raise
    except BaseException as error:
        stopped = isinstance(error, Stopped)
        folder.log(f"{'stopped' if stopped else 'failed'}: {error or type(error).__name__}")
        failure = None if stopped else str(error) or type(error).__name__
        done = _scored(record, trainer.progress, choices)
        done = done.with_(status="stopped" if stopped else "failed", failure=failure)
        try:
            _write(folder, done)
        except InputError:
            folder.log("the record could not be written")
        raise
    finally:
        trackers.close()
    folder.log("finished")
    done = _scored(record, trainer.progress, choices).with_(status="finished", final=trainer.progress.last)
    _write(folder, done)
    return done


@contextmanager
def _warnings_as_notes(folder: RunFolder, display: Display) -> Iterator[None]:
    """What a layer warns of goes to the person and the log as a sentence, not as a line of code."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        folder.log(f"warning: {message}")
        display.note(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def measure_energy(made: Plan, net: nn.Module) -> dict[str, Any] | None:
    """Operations and energy per layer of the trained network on test samples, a fixed random choice; None for an ANN."""
    if made.config.model.ann:
        return None
    assert isinstance(net, Network)
    chosen = build.subset(made.test, min(ENERGY_SAMPLES, len(made.test)))
    with build.build_test_loader(made.config, chosen).epoch(0) as batches:
        inputs = [x for x, _ in batches]
    static = inputs[0].dim() == 4
    x = torch.cat(inputs, dim=0 if static else 1).to(made.device)
    source = f"trained weights, {len(chosen)} test samples"
    return energy(net, measure_activity(net, x), rates_from=source, static_input=static).to_dict()


def _save_weights(net: nn.Module, path: Path) -> None:
    assert isinstance(net, Network)
    try:
        save_weights(net, path)
    except OSError as error:
        raise explain(error, path, "The last checkpoint stands.") from error


def _write(folder: RunFolder, record: RunRecord) -> None:
    folder.write(folder.record, records.canonical(record.to_dict()))


def _scored(record: RunRecord, progress: Progress, choices: ConvChoices | None) -> RunRecord:
    clock = {**record.clock, "ended": now(), "elapsed_s": round(progress.elapsed_s, 3)}
    return record.with_(best_on_test=progress.best, clock=clock, convs=choices.measured if choices else None)


def title(config: RunConfig, record: RunRecord) -> str:
    """A run in one line."""
    m = config.model
    kind = "ANN" if m.ann else f"{config.method}, T={m.num_steps}"
    return (
        f"{m.name} x{m.width_mult:g}, {kind}, {config.data.name}, seed {config.seed}: "
        f"{record.network['parameters']:,} parameters, backend {record.backend}"
        + (f", scored on {config.data.holdout} held-out training samples" if config.data.holdout else "")
    )
