"""What a report knows of a run: its record and its metrics, checked against each other."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.records import RunRecord, read_metrics, read_record, reading

EPOCH_KEYS = ("epoch", "step", "lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
LAYER_KEYS = (
    *("rate_T", "available_T", "kappa_T", "mean_T", "var_T", "predicted_mean_T", "predicted_var_T"),
    *("exact_mean_T", "exact_var_T", "input_mean", "input_var", "rate_in", "tau", "gamma_bar", "beta_bar"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The records of one run."""

    path: Path
    record: RunRecord
    epochs: list[dict[str, Any]]
    """The log lines of finished epochs, in order; at least one."""
    snapshots: list[dict[str, Any]]
    """The log lines of the monitor, in order; none for an ANN."""
    warnings: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    """What a reader must know of the records, e.g. that they are torn or that the run is not finished."""

    @property
    def name(self) -> str:
        """As the record says."""
        return self.record.name

    @property
    def method(self) -> str:
        """The method, `ann`, or `own` for a network of the user's own."""
        return self.record.method

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.record.network.get("num_steps") or self.record.config["model"]["num_steps"])

    @property
    def is_own(self) -> bool:
        """Whether the network was the user's own."""
        return "class" in self.record.network

    @property
    def network(self) -> str:
        """The network in words."""
        model = self.record.config["model"]
        if self.is_own:
            return str(model["name"] if ":" in model["name"] else self.record.network["class"]).rpartition(":")[2]
        return f"{model['name']} \N{MULTIPLICATION SIGN} {model['width_mult']:g}"

    def v_th(self, layer: dict[str, Any]) -> float:
        """A layer's threshold: its own, or the configuration's in records that hold one for all."""
        return float(layer.get("v_th") or self.record.config["model"]["v_th"])

    def shows(self, *keys: str) -> bool:
        """Whether every layer of every snapshot has values of these, lists of one length; other libraries' may not."""
        for key in keys:
            values = [layer[key] for s in self.snapshots for layer in s["layers"].values()]
            lengths = {len(v) if isinstance(v, list) else -1 for v in values if v is not None}
            if not values or None in values or len(lengths) != 1 or 0 in lengths:
                return False
        return True

    @property
    def finished(self) -> bool:
        """Whether the last epoch here is the run's last."""
        return self.record.final is not None

    @property
    def last(self) -> dict[str, Any]:
        """The result: scores of the last epoch that there is."""
        return self.record.final or self.epochs[-1]

    @property
    def best(self) -> dict[str, Any]:
        """The best epoch, chosen on the test set."""
        return max((*self.epochs, self.last), key=lambda e: (e["test_accuracy"], -e["epoch"]))

    @property
    def planned_epochs(self) -> int:
        """How many there are to be."""
        return int(self.record.config["train"]["epochs"])

    @property
    def layers(self) -> list[str]:
        """In network order."""
        return list(self.snapshots[-1]["layers"]) if self.snapshots else []

    @property
    def detailed(self) -> list[dict[str, Any]]:
        """Snapshots with histograms and every channel's gamma and beta."""
        return [s for s in self.snapshots if all(layer.get("detail") for layer in s["layers"].values())]

    def in_epochs(self, snapshot: dict[str, Any]) -> float:
        """A snapshot's time in epochs: the weights it saw had been trained for so long."""
        per_epoch = self.epochs[-1]["step"] / self.epochs[-1]["epoch"]
        return float((snapshot["step"] - 1) / per_epoch)


def read_run(path: Path) -> Run:
    """Read a run folder, or say in one sentence why no report can be made of it."""
    if not path.is_dir():
        raise InputError(f"no run at {path}: the folder is not there. `mpd-agl runs` lists the runs.", "no-run")
    with reading(path):
        return _read(path)


def _read(path: Path) -> Run:
    record = read_record(path / "record.json")
    metrics = path / "metrics.jsonl"
    lines = list(read_metrics(metrics))
    notes = []
    if _torn(metrics):
        notes.append("The last line of metrics.jsonl is torn (the run was killed while it wrote); it is left out.")
    epochs = [e for e in lines if e.get("log") == "epoch"]
    snapshots = [e for e in lines if e.get("log") == "monitor"]
    _check(path, record, epochs, snapshots)
    planned, done = record.config["train"]["epochs"], epochs[-1]["epoch"]
    if record.final is None:
        why = f" ({record.failure})" if record.failure else ""
        state = {"failed": "The run failed", "stopped": "The run was stopped"}.get(
            record.status, "The run is not finished"
        )
        notes.append(f"{state}{why}: {done} of {planned} epochs are done, and every number here is of epoch {done}.")
    elif done < record.final["epoch"]:
        notes.append(
            f"metrics.jsonl ends at epoch {done}, the record at {record.final['epoch']}: "
            "the curves end early; the result is the record's."
        )
    if held_out := record.config["data"].get("holdout"):
        notes.append(f"Scored on {held_out} held-out training samples: where this page says test, it speaks of these.")
    warnings = [e for e in lines if e.get("log") == "warning"]
    return Run(path=path, record=record, epochs=epochs, snapshots=snapshots, warnings=warnings, notes=notes)


def _torn(path: Path) -> bool:
    tail = path.read_bytes().rpartition(b"\n")[2]
    if not tail:
        return False
    try:
        return not isinstance(json.loads(tail), dict)
    except ValueError:
        return True


def _check(path: Path, record: RunRecord, epochs: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> None:
    """Refuse records that this version cannot read or that contradict each other."""
    if not epochs:
        raise InputError(
            f"run {path} has no finished epoch yet, so there is no result to report. "
            f"Continue it with `mpd-agl train --resume {path}`.",
            "no-epoch",
        )
    config = record.config
    wanted = {"model": ("ann", "num_steps", "v_th", "name", "width_mult"), "train": ("epochs",), "data": ("name",)}
    lost = [f"config.{s}.{k}" for s, keys in wanted.items() for k in keys if k not in config.get(s, {})]
    lost += ["config.method"] if "method" not in config else []
    lost += [f"epoch line's {k}" for k in EPOCH_KEYS if any(k not in e for e in epochs)]
    if record.final is not None:
        lost += [f"final.{k}" for k in EPOCH_KEYS if k != "lr" and k not in record.final]
    layers = [layer for s in snapshots for layer in s.get("layers", {}).values()]
    lost += [f"monitor line's {k}" for k in LAYER_KEYS if any(k not in layer for layer in layers)]
    lost += ["monitor line's layers"] if any(not s.get("layers") or "step" not in s for s in snapshots) else []
    if lost:
        raise InputError(
            f"the records of run {path} are another version's: {lost[0]} is missing. "
            "Read them with the version that wrote them.",
            "other-version",
        )
    if len({tuple(s["layers"]) for s in snapshots}) > 1 or [e["epoch"] for e in epochs] != list(
        range(1, len(epochs) + 1)
    ):
        raise InputError(
            f"metrics.jsonl of run {path} is of more than one run. Train it again under another --name.", "torn-metrics"
        )
    final = record.final
    same = final is None or all(
        e["test_accuracy"] == final["test_accuracy"] for e in epochs if e["epoch"] == final["epoch"]
    )
    if final is not None and (not same or epochs[-1]["epoch"] > final["epoch"]):
        raise InputError(
            f"record.json and metrics.jsonl of run {path} give different results for epoch {final['epoch']}. "
            "Train it again under another --name.",
            "torn-metrics",
        )


SAME_TEST = ("samples", "sha256", "subset_hash", "split_hash")
"""What the test sets of compared runs must share. The frames' hash is not in it: T may differ."""


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse to lay runs side by side that were not tested on the same data."""
    seen = [r.path.resolve() for r in runs]
    if twice := [r.path for i, r in enumerate(runs) if r.path.resolve() in seen[:i]]:
        raise InputError(f"run {twice[0]} is given twice. Name each run once.", "not-comparable")
    first = runs[0]
    for other in runs[1:]:
        a, b = first.record.data, other.record.data
        if a["name"] != b["name"]:
            raise InputError(
                f"one comparison needs one data set, got {a['name']} ({first.path}) and {b['name']} ({other.path}). "
                "Make a report for each.",
                "not-comparable",
            )
        differ = [k for k in SAME_TEST if a["test"].get(k) != b["test"].get(k)]
        if differ:
            raise InputError(
                f"{first.path} and {other.path} were tested on different samples of {a['name']} "
                f"({', '.join(differ)} differ). Make a report for each.",
                "not-comparable",
            )
