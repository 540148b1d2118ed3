"""A run from its configuration to its record: start, or continue where it was stopped."""

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from mpd_agl import records
from mpd_agl.analysis import count_operations, energy, measure_activity
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.experiments import build
from mpd_agl.experiments.config import RunConfig
from mpd_agl.experiments.convs import ConvChoices
from mpd_agl.experiments.resolve import check_same, flatten, merge, read_toml, resolve, to_toml
from mpd_agl.experiments.watch import build_watch
from mpd_agl.kernels import reuse_pages
from mpd_agl.models import Network, save_weights
from mpd_agl.records import RunRecord
from mpd_agl.train import checkpoint
from mpd_agl.train.disk import explain
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


def plan(config: RunConfig, threads: int = 0) -> Plan:
    """Load the data and build the network."""
    reuse_pages()
    device = build.choose_device(config.train.device)
    build.set_up_torch(config, device, threads or config.train.threads)
    backend = build.backend_that_runs(config, device)
    train, test = build.build_data(config, "train"), build.build_data(config, "test")
    build.build_loaders(config, train, test)
    net = build.network_for(config, train).to(device)
    return Plan(config, device, train, test, net, backend)


def start(config: RunConfig, path: Path, display: Display, *, overwrite: bool = False) -> RunRecord:
    """Train from the beginning, in a new run folder."""
    made = plan(config)
    with RunFolder.create(path, overwrite=overwrite) as folder:
        folder.write(folder.config, to_toml(config).encode())
        folder.log("started")
        return _train(made, folder, display, None, {"started": now()})


def resume(path: Path, changes: dict[str, Any], display: Display) -> RunRecord:
    """Continue a run where its newest whole checkpoint stands; `changes` may touch only what the weights do not depend on."""
    with RunFolder.open(path) as folder:
        table = read_toml(folder.config)
        config = resolve(merge(table, changes), given=flatten(changes))
        record = records.read_record(folder.record) if folder.record.is_file() else None
        check_same(resolve(record.config if record else table), config)
        if record is not None and record.status == "finished":
            return record

        def note(text: str) -> None:
            folder.log(text)
            display.note(text)

        checkpoint.clean(folder.checkpoints)
        saved = checkpoint.newest(folder.checkpoints, note, set_aside=True)
        if saved is None:
            note("there is no checkpoint yet: the run starts from its beginning.")
        made = plan(config, threads=saved.state["threads"] if saved else 0)
        if record is not None:
            _check_same_backend(record, made)
            build.check_same_data(record.data, build.data_facts(made.train, made.test))
        folder.write(folder.config, to_toml(config).encode())
        folder.log(f"resumed at step {saved.at.step if saved else 0}")
        started = record.clock.get("started", now()) if record else now()
        return _train(made, folder, display, saved, {"started": started})


def _check_same_backend(record: RunRecord, made: Plan) -> None:
    """Another backend computes the same function with other roundings: not the same run."""
    if record.backend != made.backend:
        raise InputError(
            f"the run began with backend {record.backend}, and here model.backend {made.config.model.backend!r} is {made.backend}. "
            "`mpd-agl info` tells why; make that backend work, or start a new run with another --name."
        )


def _train(
    made: Plan, folder: RunFolder, display: Display, saved: checkpoint.Checkpoint | None, clock: dict[str, Any]
) -> RunRecord:
    config, net = made.config, made.net
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
        },
        data=build.data_facts(made.train, made.test),
        seeds={"run": config.seed, "split": config.data.split_seed},
        backend=made.backend,
        network={
            "parameters": sum(p.numel() for p in net.parameters()),
            "macs_per_step": sum(layer.macs for layer in count_operations(net)),
        },
        clock=clock,
    )
    train, test = build.build_loaders(config, made.train, made.test)
    settings = config.model_dump(mode="json")
    trackers = build_trackers(config.track, folder.path, settings, saved.at.step if saved else 0, display.note)
    stepper = build.build_stepper(config, net, made.device)
    observer: Observer = build_watch(
        net, config.monitor, spiking=not config.model.ann, steps=config.train.epochs * len(train)
    )
    choices = None
    if config.model.conv == "auto":
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
        )
    )
    if saved is not None:
        trainer.restore(saved)
    folder.start_metrics(saved.state["metrics_bytes"] if saved else 0)
    _write(folder, record)
    try:
        with _warnings_as_notes(folder, display):
            trainer.fit()
        ema = trainer.job.stepper.ema
        trained = net if ema is None else ema.net
        _save_weights(trained, folder.path / "model.safetensors")
        record = record.with_(energy=measure_energy(made, trained))
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
    except (OSError, SafetensorError) as error:
        cause = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
        raise explain(cause, path, "The last checkpoint stands.") from error


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
        f"{m.name} x{m.width:g}, {kind}, {config.data.name}, seed {config.seed}: "
        f"{record.network['parameters']:,} parameters, backend {record.backend}"
    )
