"""Run folders, records and metrics: nothing overwritten, nothing half, nobody else let in."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.records import RunRecord, read_metrics, read_record
from mpd_agl.train import runfolder
from mpd_agl.train.runfolder import RunFolder, check_name, check_run, in_use
from tests.refused import refused

RECORD = RunRecord(
    name="a",
    status="running",
    config={"seed": 0},
    code={"commit": None, "changed": None},
    versions={"python": "3"},
    hardware={"cores": 2},
    data={"name": "mnist5k"},
    seeds={"run": 0},
    backend="eager",
    network={"parameters": 1},
)


@pytest.mark.parametrize(
    "name",
    [
        *("../a", "a/b", "/etc", "a\\b", "C:a", "", "..", ".hidden", "-rf", "a\n", "a\0/../b", "x" * 100_000),
        *("a.", "CON", "com1.txt", "\u202e", "\uff0e\uff0e", "$HOME", "a;b", "*"),
    ],
)
def test_a_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(InputError) as error:
        check_name(name)
    assert error.value.code == "bad-name"
    assert len(str(error.value)) < 1000


def make(path: Path) -> None:
    with RunFolder.create(path) as folder:
        folder.write(folder.config, b"seed = 0\n")
        (path / "checkpoints" / "x").mkdir(parents=True)


def test_an_old_run_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    make(path)
    with refused("run-exists", path):
        RunFolder.create(path)
    assert (path / "checkpoints" / "x").is_dir()
    RunFolder.create(path, overwrite=True).close()
    assert [p.name for p in path.iterdir()] == [".lock"]
    make(path)  # a folder with nothing but a lock is a new one


def test_a_folder_that_is_no_run_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("photos", "file"):
        with refused("no-run-folder", tmp_path / name):
            RunFolder.create(tmp_path / name, overwrite=True)
    assert (tmp_path / "photos" / "a.png").is_file()
    for path in (tmp_path / "none", tmp_path / "photos"):
        with refused("no-run", path):
            check_run(path)


def test_overwriting_follows_no_link(tmp_path: Path) -> None:
    path, precious = tmp_path / "run", tmp_path / "precious"
    make(path)
    precious.mkdir()
    (precious / "a").write_text("x")
    (path / "link").symlink_to(precious)
    RunFolder.create(path, overwrite=True).close()
    assert (precious / "a").is_file()


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link where a file of the run is to be: what it leads to stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
    for overwrite in (False, True):
        with refused("no-run-folder", "linked"):
            RunFolder.create(tmp_path / "linked", overwrite=overwrite)
    path = tmp_path / "run"
    make(path)
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(precious)
    with refused("cannot-write", path):
        RunFolder.open(path)
    (path / ".lock").unlink()
    for name in ("metrics.jsonl", "log.txt"):
        (path / name).symlink_to(precious)
    with RunFolder.open(path) as folder:
        folder.log("nothing")
        with refused("cannot-write", "metrics.jsonl"):
            folder.start_metrics(0)
    assert precious.read_text() == "x"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_came_and_went_before_the_lock_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = tmp_path / "run", runfolder._lock
    path.mkdir()

    def late(folder: Path) -> object:
        (folder / "config.toml").write_text("seed = 7")
        return plain(folder)

    monkeypatch.setattr(runfolder, "_lock", late)
    with refused("run-exists", path):
        RunFolder.create(path)
    assert (path / "config.toml").read_text() == "seed = 7"
    assert not in_use(path)


def test_metrics_shorter_than_the_checkpoint_remembers_are_not_padded(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        assert folder.start_metrics(40) == 40
        folder.log_metrics({"log": "a"})
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b'{"log": "a"}\n'


def test_the_lock_names_its_owner_and_goes_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    code = (
        "import sys, time; from pathlib import Path; from mpd_agl.train.runfolder import RunFolder\n"
        "folder = RunFolder.open(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert in_use(path)
        for attempt in (RunFolder.open, RunFolder.create, lambda p: RunFolder.create(p, overwrite=True)):
            with refused("in-use", f"process {other.pid}"):
                attempt(path)
    finally:
        other.kill()
        other.communicate()
    assert not in_use(path)
    RunFolder.open(path).close()


def test_metrics_are_cut_back_and_appended(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        folder.start_metrics(0)
        folder.log_metrics({"log": "a"})
        offset = folder.sync_metrics()
        folder.log_metrics({"log": "lost"})
    with RunFolder.open(tmp_path / "run") as folder:
        folder.start_metrics(offset)
        folder.log_metrics({"log": "b"})
    assert [e["log"] for e in read_metrics(tmp_path / "run" / "metrics.jsonl")] == ["a", "b"]


def test_a_torn_last_line_is_left_out_and_one_within_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"log": "a"}\n{"eve')
    assert [e["log"] for e in read_metrics(path)] == ["a"]
    path.write_text('{"eve\n{"log": "a"}\n')
    with refused("torn-metrics", "line 1"):
        list(read_metrics(path))
    with refused("no-file", "none"):
        list(read_metrics(tmp_path / "none"))


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write_atomic(path, records.canonical(RECORD.to_dict()))
    assert read_record(path) == RECORD
    assert read_record(path).with_(status="finished").status == "finished"
    assert list(tmp_path.iterdir()) == [path]
    for convs in ({"rule": 1, "simd": "avx2"}, [{"step": 0, "layers": {}}]):  # of now, and of 0.2
        records.write_atomic(path, records.canonical(RECORD.with_(convs=convs).to_dict()))
        assert read_record(path).convs == convs


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("{", "torn-record", "record.json"),
        ("[]", "other-version", "'list'"),
        (json.dumps({**RECORD.to_dict(), "schema": 9}), "other-version", 9),
        (json.dumps({**RECORD.to_dict(), "colour": 1}), "torn-record", "colour"),
        (json.dumps({"schema": 1}), "torn-record", "backend"),
        (json.dumps({**RECORD.to_dict(), "status": "dreaming"}), "torn-record", "'dreaming'"),
    ],
)
def test_a_record_that_is_none(tmp_path: Path, text: str, code: str, value: object) -> None:
    (tmp_path / "record.json").write_text(text)
    with refused(code, value):
        read_record(tmp_path / "record.json")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    records.write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_provenance_names_no_host_and_no_folder() -> None:
    text = json.dumps([records.code(), records.versions(), records.hardware()])
    assert os.uname().nodename not in text
    assert str(Path(runfolder.__file__).parent) not in text
    assert records.versions()["torch"].startswith("2.")


def test_a_look_at_the_lock_does_not_refuse_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = (tmp_path / ".lock").open("w")
    fcntl.flock(look, fcntl.LOCK_SH)  # as `in_use` of another process does for a moment
    monkeypatch.setattr(runfolder.time, "sleep", lambda seconds: look.close())
    RunFolder.create(tmp_path).close()
    assert look.closed
