"""Files near valid ones (configurations, manifests, records, weights): right data, or a sentence with the place."""

import copy
import hashlib
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpd_agl.cli.runs import read_row
from mpd_agl.errors import InputError
from mpd_agl.export import import_weights
from mpd_agl.models import create_model, load_weights, save_weights
from mpd_agl.records import canonical, read_metrics, read_record
from mpd_agl.report import read_run
from mpd_agl.train import checkpoint, resuming, training
from mpd_agl.train.load_run import load_run
from mpd_agl.train.resolve import read_toml, resolve, to_toml
from tests.data.test_readers_fuzz import damaged
from tests.data.test_readers_fuzz import fuzz as data_fuzz
from tests.report import runfolder as made
from tests.train.tiny import TINY, Silent, tiny

FACTOR = int(os.environ.get("MPD_AGL_FUZZ_RECORDS", "1"))


fuzz = partial(data_fuzz, factor=FACTOR)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -1, 0, 2**63, "../../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every part of a JSON value."""
    found = [here] if here else []
    if isinstance(value, dict):
        return found + [p for k, v in value.items() for p in places(v, (*here, k))]
    if isinstance(value, list):
        return found + [p for i, v in enumerate(value[:20]) for p in places(v, (*here, i))]
    return found


def changed(value: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The value with one to three parts replaced by anything, or taken out."""
    paths = places(value)

    def change(edits: list[tuple[tuple[Any, ...], Any, bool]]) -> dict[str, Any]:
        out = copy.deepcopy(value)
        for path, new, gone in edits:
            here: Any = out
            try:
                for key in path[:-1]:
                    here = here[key]
                if gone and isinstance(here, dict):
                    here.pop(path[-1], None)
                else:
                    here[path[-1]] = new
            except (KeyError, IndexError, TypeError):
                continue  # an edit before took the place away
        return out

    return st.lists(st.tuples(st.sampled_from(paths), anything, st.booleans()), min_size=1, max_size=3).map(change)


def or_one_sentence(place: object, read: Any, *args: Any) -> Any:
    """What `read` gives, or None after a refusal that names the place."""
    try:
        return read(*args)
    except InputError as error:
        said = str(error)
    assert str(place) in said, said
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


TEXT = to_toml(tiny()).encode()


@fuzz(70)
@given(damaged(TEXT))
def test_config_text(place: Path, content: bytes) -> None:
    path = place / "config.toml"
    path.write_bytes(content)
    table = or_one_sentence(path, read_toml, path)
    if table is not None:
        config = or_one_sentence(path, resuming.resolve_file, table, path)
        assert config is None or resolve(config.model_dump(mode="json")) == config


@fuzz(70)
@given(changed(TINY))
def test_config_values(table: dict[str, Any]) -> None:
    config = or_one_sentence("", resolve, table)
    assert config is None or resolve(config.model_dump(mode="json")) == config


def signed(body: dict[str, Any]) -> bytes:
    body = {k: v for k, v in body.items() if k != "manifest_sha256"}
    return canonical({**body, "manifest_sha256": hashlib.sha256(canonical(body)).hexdigest()})


@pytest.fixture(scope="module")
def saved(place: Path) -> Path:
    tensors = {"model": {"a": torch.ones(3)}, "optimizer": {"b:a": torch.ones(3)}}
    return checkpoint.save(place / "checkpoints", checkpoint.Position(1, 2), tensors, {"progress": {"step": 2}})


def read_or_damaged(path: Path) -> checkpoint.Checkpoint | None:
    try:
        return checkpoint.read(path)
    except checkpoint.Damaged as damage:
        said = f"{path} {damage}"
    except InputError as error:
        said = str(error)
    assert str(path) in said
    assert "\n" not in said
    return None


@fuzz(70)
@given(st.data())
def test_manifest(saved: Path, data: st.DataObject) -> None:
    whole = (saved / "manifest.json").read_bytes()
    content = data.draw(damaged(whole))
    (saved / "manifest.json").write_bytes(content)
    try:
        assert (read_or_damaged(saved) is not None) == (content == whole)
    finally:
        (saved / "manifest.json").write_bytes(whole)


@fuzz(70)
@given(st.data())
def test_signed_manifest(saved: Path, data: st.DataObject) -> None:
    """Whoever can sign can still not make the reader fall over, or read a file elsewhere."""
    whole = (saved / "manifest.json").read_bytes()
    original = json.loads(whole)
    body = data.draw(changed(original))
    try:
        content = signed(body)
    except (ValueError, TypeError):
        return  # NaN, lone surrogates: canonical JSON refuses to write them
    (saved / "manifest.json").write_bytes(content)
    try:
        got = read_or_damaged(saved)
        if got is not None:
            assert got.at == checkpoint.Position(1, 2)
            assert torch.equal(got.tensors["model"]["a"], torch.ones(3))
    finally:
        (saved / "manifest.json").write_bytes(whole)


@pytest.fixture(scope="module")
def stopped(place: Path) -> Path:
    """A run of one epoch: its record says finished, its checkpoints are whole."""
    path = place / "run"
    training.start(tiny({"train": {"epochs": 1}}), path, Silent())
    return path


class Restorer:
    """A trainer that stands before its first step."""

    def __init__(self, path: Path) -> None:
        from mpd_agl.train.build import build_run
        from mpd_agl.train.loop import Trainer
        from mpd_agl.train.monitoring import Watch
        from mpd_agl.train.runfolder import RunFolder

        run = build_run(tiny({"train": {"epochs": 1}}))
        self.folder = RunFolder.open(path)
        self.trainer = Trainer(run, self.folder, Silent(), [Watch(run.net, run.config.monitor.every, steps=4)])


@pytest.fixture(scope="module")
def restorer(stopped: Path) -> Any:
    made_ = Restorer(stopped)
    yield made_
    made_.folder.close()


@fuzz(50)
@given(st.data())
def test_state(stopped: Path, restorer: Any, data: st.DataObject) -> None:
    root = stopped / "checkpoints"
    whole = checkpoint.read(root / checkpoint.positions(root)[-1].folder)
    state = {k: v for k, v in whole.state.items() if k != "rng"}  # its thousand numbers would take all the edits
    mutated = data.draw(changed({**state, "rng": {k: str(v)[:20] for k, v in whole.state["rng"].items()}}))
    if mutated.get("rng") == {k: str(v)[:20] for k, v in whole.state["rng"].items()}:
        mutated["rng"] = whole.state["rng"]
    at = checkpoint.Checkpoint(whole.at, whole.tensors, mutated)
    offset = or_one_sentence(whole.at.folder, resuming.restore, restorer.trainer, at, restorer.folder)
    assert offset is None or offset >= 0


@fuzz(50)
@given(st.data())
def test_record_text(stopped: Path, data: st.DataObject) -> None:
    content = data.draw(damaged((stopped / "record.json").read_bytes()))
    use_record(stopped, content)


@fuzz(70)
@given(st.data())
def test_record_values(stopped: Path, data: st.DataObject) -> None:
    record = json.loads((stopped / "record.json").read_bytes())
    use_record(stopped, json.dumps(data.draw(changed({**record, "energy": None}))).encode())


def use_record(run: Path, content: bytes) -> None:
    """Everything that reads a record of a run's folder."""
    whole = (run / "record.json").read_bytes()
    (run / "record.json").write_bytes(content)
    try:
        or_one_sentence(run, read_record, run / "record.json")
        or_one_sentence(run, read_run, run)
        row = read_row(run)
        assert row is not None
        json.dumps(row)
        if os.path.getsize(run / "record.json") % 10 == 0:  # builds a network
            or_one_sentence(run, load_run, run, "last", print)
    finally:
        (run / "record.json").write_bytes(whole)


@fuzz(70)
@given(st.data())
def test_metrics(place: Path, data: st.DataObject) -> None:
    run = place / "reported"
    if not run.exists():
        made.write(run)
    whole = (run / "metrics.jsonl").read_bytes()
    if data.draw(st.booleans()):
        content = data.draw(damaged(whole))
    else:
        lines = [json.loads(line) for line in whole.splitlines()]
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(changed(lines[at]))
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (run / "metrics.jsonl").write_bytes(content)
    try:
        events = or_one_sentence(run, lambda: list(read_metrics(run / "metrics.jsonl")))
        assert events is None or all(isinstance(e, dict) for e in events)
        or_one_sentence(run, read_run, run)
    finally:
        (run / "metrics.jsonl").write_bytes(whole)


@pytest.fixture(scope="module")
def net() -> Any:
    return create_model("cnn8", width_mult=1 / 64)


@fuzz(50)
@given(st.data())
def test_weights(place: Path, net: Any, data: st.DataObject) -> None:
    path = place / "some.safetensors"
    if not (place / "whole").exists():
        save_weights(net, place / "whole")
    whole = (place / "whole").read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")
    part = whole[:head] if data.draw(st.booleans()) else whole
    path.write_bytes(data.draw(damaged(part)) + whole[len(part) :])
    or_one_sentence(path, load_weights, net, path)
    assert all(torch.isfinite(v).all() for v in net.state_dict().values())


@fuzz(50)
@given(st.data())
def test_pt(place: Path, net: Any, data: st.DataObject) -> None:
    path = place / "some.pt"
    if not (place / "whole.pt").exists():
        torch.save(net.state_dict(), place / "whole.pt")
    path.write_bytes(data.draw(damaged((place / "whole.pt").read_bytes())))
    or_one_sentence(path, import_weights, net, path, "mpd-agl")
    assert all(torch.isfinite(v).all() for v in net.state_dict().values())


def test_a_run_with_a_changed_record_resumes_or_refuses(stopped: Path, tmp_path: Path) -> None:
    """The whole way: what the fuzzed parts cannot see together."""
    for number, edit in enumerate(
        ({"data": {}}, {"clock": {"started": 3}}, {"seeds": []}, {"backend": "x"}, {"hardware": {"simd": "avx9"}})
    ):
        path = tmp_path / f"run{number}"
        shutil.copytree(stopped, path)
        record = json.loads((path / "record.json").read_text())
        (path / "record.json").write_text(json.dumps({**record, "status": "stopped", **edit}))
        display = Silent()
        result = or_one_sentence("", training.resume, path, {}, display)
        assert result is None or result.status == "finished"
