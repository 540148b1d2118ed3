"""Checkpoints that verify themselves: a folder of safetensors and JSON with the sha256 of every file in a manifest.

    epoch-0003-step-00001200/
        model.safetensors  optimizer.safetensors  [ema.safetensors]  state.json  manifest.json

A checkpoint is written under a temporary name, synced and renamed: a folder with that name is complete. The manifest
holds a digest of itself, so that no bit of a checkpoint can change unseen, its format's number included. Nothing here
can run code: tensors and JSON alone.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.records.files import canonical, explain, sync_folder, write_synced

FORMAT = 1
_NAME = re.compile(r"epoch-(\d{4,})-step-(\d{8,})")
_FILE = re.compile(r"[a-z]+\.safetensors|state\.json")


class Position(NamedTuple):
    """How far a run is: complete epochs, then steps. An epoch's last step and its end are two positions."""

    epoch: int
    step: int

    @property
    def folder(self) -> str:
        """The name of this position's checkpoint."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


class Damaged(Exception):
    """A checkpoint has changed since it was written; the text names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: groups of tensors (`model`, `optimizer`, `ema`) and a JSON state."""

    at: Position
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save(root: Path, at: Position, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint. If there is one of this position already, it holds the same, and stays."""
    target = root / at.folder
    if target.exists():
        return target
    partial = root / f".{target.name}.{os.getpid()}.tmp"
    try:
        partial.mkdir(parents=True)
        files = {f"{group}.safetensors": _pack(named) for group, named in tensors.items()}
        files["state.json"] = canonical(dict(state))
        for name, data in files.items():
            write_synced(partial / name, data)
        write_synced(partial / "manifest.json", _manifest(at, files))
        sync_folder(partial)
        os.rename(partial, target)
        sync_folder(root)
    except OSError as error:
        raise explain(error, target, "The checkpoints before it stand: continue with --resume.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _pack(named: Mapping[str, Tensor]) -> bytes:
    """As safetensors, which refuses tensors that share memory, as tied weights do: further ones are copies."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in named.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        found[name] = plain.clone() if place in places else plain
        places.add(place)
    return dump_tensors(found)


def pack_groups(tensors: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """All groups in one safetensors block, to be sent to other processes."""
    return _pack({f"{group}/{name}": t for group, named in tensors.items() for name, t in named.items()})


def unpack_groups(data: bytes) -> dict[str, dict[str, Tensor]]:
    """The groups of `pack_groups`."""
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for key, tensor in load_tensors(data).items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def _manifest(at: Position, files: Mapping[str, bytes]) -> bytes:
    body: dict[str, Any] = {
        "format": FORMAT,
        "epoch": at.epoch,
        "step": at.step,
        "files": {name: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for name, d in files.items()},
    }
    return canonical({**body, "manifest_sha256": hashlib.sha256(canonical(body)).hexdigest()})


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; `Damaged` says which file is not what was written."""
    manifest = _read_manifest(path)
    found = {p.name for p in path.iterdir()} - {"manifest.json"}
    if foreign := sorted(found - set(manifest["files"])):
        raise Damaged(f"{foreign[0]} does not belong to it")
    content = {}
    for name, expected in manifest["files"].items():
        data = _content(path / name)
        if len(data) != expected["bytes"]:
            raise Damaged(f"{name} has {len(data)} bytes in place of {expected['bytes']}")
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise Damaged(f"the sha256 of {name} is not the one in the manifest")
        content[name] = data
    at = Position(manifest["epoch"], manifest["step"])
    try:
        tensors = {n.removesuffix(".safetensors"): load_tensors(d) for n, d in content.items() if n != "state.json"}
        state = json.loads(content["state.json"])
    except (SafetensorError, ValueError, KeyError, RecursionError):
        raise Damaged("its manifest is right, but its content is not a checkpoint's") from None
    if not isinstance(state, dict):
        raise Damaged("state.json is no JSON object")
    return Checkpoint(at, tensors, state)


def _read_manifest(path: Path) -> dict[str, Any]:
    data = _content(path / "manifest.json")
    try:
        manifest = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Damaged("manifest.json is no JSON") from None
    if not isinstance(manifest, dict) or not _is_signed(manifest, data):
        raise Damaged("manifest.json is not what was written")
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"the checkpoint {path} has format {manifest.get('format')!r}, and this version reads {FORMAT}. "
            "Continue it with the version that wrote it.",
            "other-version",
        )
    if not _is_manifest(manifest):
        raise Damaged("manifest.json lists something else than a checkpoint")
    if path.name != Position(manifest["epoch"], manifest["step"]).folder:
        raise Damaged(f"it is the checkpoint of step {manifest['step']} under another name")
    return manifest


def _content(path: Path) -> bytes:
    """A plain file's bytes. A link could lead anywhere, and a pipe would never end."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise Damaged(f"{path.name} is no plain file")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None


def _is_signed(manifest: dict[str, Any], data: bytes) -> bool:
    body = {k: v for k, v in manifest.items() if k != "manifest_sha256"}
    try:
        right: bool = manifest.get("manifest_sha256") == hashlib.sha256(canonical(body)).hexdigest()
        return right and canonical(manifest) == data
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _is_manifest(manifest: dict[str, Any]) -> bool:
    """Whether the parts have the types that `_manifest` writes, and no file lies elsewhere."""
    counts = [manifest.get("epoch"), manifest.get("step")]
    files = manifest.get("files")
    return (
        all(type(n) is int and n >= 0 for n in counts)
        and isinstance(files, dict)
        and all(_FILE.fullmatch(name) for name in files)
        and all(isinstance(entry, dict) and {"bytes", "sha256"} <= set(entry) for entry in files.values())
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def positions(root: Path) -> list[Position]:
    """Where there are checkpoints, oldest first."""
    if not root.is_dir():
        return []
    found = (_NAME.fullmatch(p.name) for p in root.iterdir() if p.is_dir())
    return sorted(Position(int(m[1]), int(m[2])) for m in found if m)


def newest(root: Path, note: Callable[[str], None], *, set_aside: bool) -> Checkpoint | None:
    """The newest checkpoint that is whole.

    Damaged ones are named through `note` and, if asked, renamed to `*.damaged`.
    """
    saved, damages = None, []
    for at in reversed(positions(root)):
        path = root / at.folder
        try:
            saved = read(path)
            break
        except Damaged as damage:
            aside = f"; set aside as {_put_aside(path).name}" if set_aside else ""
            damages.append(f"checkpoint {path} is damaged: {damage}{aside}.")
    for text in damages:
        note(f"{text} {saved.at.folder} is used." if saved else text)
    return saved


def set_aside(root: Path) -> list[str]:
    """Names of the damaged checkpoints that were set aside, oldest first."""
    return sorted(p.name for p in root.glob("epoch-*.damaged*")) if root.is_dir() else []


def _put_aside(path: Path) -> Path:
    before = len(list(path.parent.glob(f"{path.name}.damaged*")))
    target = path.with_name(f"{path.name}.damaged" + (f"-{before + 1}" if before else ""))
    os.rename(path, target)
    return target


def prune(root: Path, keep_last: int, best: Position | None) -> None:
    """Delete all but the newest `keep_last` and the best."""
    for at in positions(root)[:-keep_last]:
        if at != best:
            gone = root / f".{at.folder}.old"
            os.rename(root / at.folder, gone)  # never half a checkpoint under a whole one's name
            shutil.rmtree(gone, ignore_errors=True)


def clean(root: Path) -> None:
    """Remove what a killed process left: unfinished checkpoints, unfinished deletions."""
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(".epoch-"):
                shutil.rmtree(path, ignore_errors=True)
