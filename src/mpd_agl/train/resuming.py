"""What a stopped run has left, and how it is continued."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.options import flatten
from mpd_agl.records import RunRecord
from mpd_agl.train import checkpoint
from mpd_agl.train.build import BuiltRun
from mpd_agl.train.config import RunConfig
from mpd_agl.train.distributed import Ranks
from mpd_agl.train.loop import Trainer
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import check_unchanged, merge, read_toml, resolve
from mpd_agl.train.runfolder import MARK, RunFolder

LAUNCH = ".launch"
"""The file of a run's folder that names the launch which runs it."""


@dataclass(frozen=True)
class SavedRun:
    """Its configuration, its last record, its newest whole checkpoint."""

    config: RunConfig
    record: RunRecord | None
    saved: checkpoint.Checkpoint | None

    def to_bytes(self) -> tuple[bytes, bytes]:
        """For the other ranks: JSON and tensors."""
        saved = self.saved
        about = {
            "config": self.config.model_dump(mode="json"),
            "record": self.record.to_dict() if self.record else None,
            "at": list(saved.at) if saved else None,
            "state": saved.state if saved else None,
        }
        return json.dumps(about).encode(), checkpoint.pack_groups(saved.tensors) if saved else b""

    @classmethod
    def from_bytes(cls, about: bytes, tensors: bytes) -> "SavedRun":
        """What rank 0 has sent."""
        sent = json.loads(about)
        record = RunRecord(**sent["record"]) if sent["record"] else None
        saved = None
        if sent["at"]:
            at = checkpoint.Position(*sent["at"])
            saved = checkpoint.Checkpoint(at, checkpoint.unpack_groups(tensors), sent["state"])
        return cls(resolve(sent["config"]), record, saved)


def sign(folder: RunFolder, ranks: Ranks) -> None:
    """Leave the launch's name in the folder."""
    if ranks.launch:
        folder.write(folder.path / LAUNCH, ranks.launch.encode())
    elif ranks.first:
        (folder.path / LAUNCH).unlink(missing_ok=True)


def began_in_this_launch(path: Path, ranks: Ranks) -> bool:
    """Whether this launch started the run there and has restarted its processes since: the run is then continued."""
    mine = False
    if ranks.first and ranks.launch and (path / MARK).is_file() and (path / LAUNCH).is_file():
        mine = (path / LAUNCH).read_bytes() == ranks.launch.encode()
    return bool(ranks.most(mine))


def resolve_file(table: dict[str, Any], place: Path) -> RunConfig:
    """The checked configuration of a file; its mistakes name the file."""
    try:
        return resolve(table)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def find(folder: RunFolder, changes: dict[str, Any], display: Display, restarted: bool) -> SavedRun:
    """Read and check what is left; damaged checkpoints are set aside."""
    path = folder.path

    def note(text: str) -> None:
        folder.log(text)
        display.note(text)

    table = read_toml(folder.config)
    own = resolve_file(table, folder.config)
    config = resolve(merge(table, changes), given=flatten(changes)) if changes else own
    record = _record_of(folder, note)
    if record is not None:
        began = resolve_file(record.config, folder.record)
        check_unchanged(began, own, f"{folder.config} is not what run {path} began with")
    check_unchanged(own, config)
    if record is not None and record.status == "finished":
        return SavedRun(config, record, None)
    if restarted and record is not None and record.status == "failed":
        raise InputError(f"the run is not started again, because it would fail again: {record.failure}", "would-fail")
    checkpoint.clean(folder.checkpoints)
    saved = checkpoint.newest(folder.checkpoints, note, set_aside=True)
    if saved is None:
        if aside := checkpoint.set_aside(folder.checkpoints):
            raise InputError(
                f"run {path} cannot be continued: every checkpoint is damaged and was set aside in "
                f"{folder.checkpoints} ({', '.join(aside)}). Bring one back from a copy, or start again: "
                f"mpd-agl train --config {folder.config} --runs-dir {path.parent} --name {path.name} --overwrite."
            )
        note("there is no checkpoint yet: the run starts from its beginning.")
    return SavedRun(config, record, saved)


def _record_of(folder: RunFolder, note: Callable[[str], None]) -> RunRecord | None:
    """What the run's last process left. If the record is damaged, say so and continue from the checkpoint alone."""
    try:
        return records.read_record(folder.record) if folder.record.is_file() else None
    except records.TornRecord as error:
        note(str(error))
        return None


def check_same_run(before: RunRecord, now: BuiltRun) -> None:
    """Refuse to continue on other data, or on another backend, which rounds differently."""
    then, here = ({k: facts.get(k) for k in ("class", "state_sha256")} for facts in (before.network, now.network))
    if then != here and (then["state_sha256"] != here["state_sha256"] or _last(then) != _last(here)):
        raise InputError(
            f"the run began with a network {_last(then)} of {before.network.get('parameters'):,} parameters, got "
            f"{_last(here)} of {now.parameters:,} whose state has other names or shapes. "
            "Resume it with the network it began with, or start a new run under another name.",
            "other-network",
        )
    if before.backend != now.backend:
        raise InputError(
            f"the run began with backend {before.backend}, and here model.backend {now.config.model.backend!r} is "
            f"{now.backend}. `mpd-agl info` has the reason; make that backend work, or start a new run.",
            "other-backend",
        )
    for split in ("train", "test"):  # where the files came from does not matter
        old, new = ({k: v for k, v in facts[split].items() if k != "source"} for facts in (before.data, now.facts))
        if differ := sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k)):
            raise InputError(
                f"the {split} data of {now.facts['name']} are not those that the run began with: {', '.join(differ)} "
                "changed. Resume it with the old data, or start a new run with another --name.",
                "other-data",
            )


def _last(facts: dict[str, Any]) -> str:
    """The name of a network's class without its module, which is __main__ in one program and not in another."""
    return str(facts["class"]).rpartition(":")[2]


def differences(before: RunRecord, now: RunRecord) -> list[str]:
    """What is different from the run's last process and may round otherwise, where both are known."""
    pairs = [
        ("the native kernels' SIMD level", before.hardware.get("simd"), now.hardware.get("simd")),
        ("torch's CPU kernels", before.hardware.get("torch_kernels"), now.hardware.get("torch_kernels")),
        ("the number of processes", before.hardware.get("processes"), now.hardware.get("processes")),
        ("the device", before.hardware.get("device"), now.hardware.get("device")),
        ("torch", before.versions.get("torch"), now.versions.get("torch")),
        ("mpd-agl", before.versions.get("mpd-agl"), now.versions.get("mpd-agl")),
    ]
    return [f"{what} was {old} and is {new}" for what, old, new in pairs if None not in (old, new) and old != new]


def restore(trainer: Trainer, saved: checkpoint.Checkpoint, folder: RunFolder) -> int:
    """Continue from a checkpoint, or say in a sentence that it is not this run's; returns where its metrics end."""
    try:
        trainer.restore(saved)
        offset = saved.state["metrics_bytes"]
        if not isinstance(offset, int) or offset < 0:
            raise TypeError(f"metrics_bytes is {offset!r}")
        return offset
    except (InputError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        reason = (f"{error} is missing" if isinstance(error, KeyError) else str(error)).partition("\n")[0].strip(" .:")
        raise InputError(
            f"the checkpoint {folder.checkpoints / saved.at.folder} is whole but not of this run ({reason[:200]}). "
            "Nothing was changed; take it out of the folder, or bring back the run's own.",
            "other-run",
        ) from error
