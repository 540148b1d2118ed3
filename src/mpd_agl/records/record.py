"""The run record: what was run, on what, and what came out, as one JSON file next to the run's metrics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError

SCHEMA = 1
AGAIN = "A resumed run writes it again."
STATES = ("running", "stopped", "failed", "finished")


class TornRecord(InputError):
    """A record that is not what was written; a resumed run writes it again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "torn-record")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. All clock times are under `clock`, so that two records of the same run can be compared without it."""

    name: str
    status: str
    """`running`, `stopped` (by a signal; can be continued), `failed` or `finished`."""
    config: dict[str, Any]
    """The complete configuration, as in config.toml."""
    code: dict[str, Any]
    """`commit` and whether files were `changed` since."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    data: dict[str, Any]
    """Per split: source, hashes, samples; and classes, mean, std and shape, which `mpd-agl predict` needs."""
    seeds: dict[str, int]
    backend: str
    """The backend of the fused step that ran, not the one that was asked for."""
    network: dict[str, Any]
    """`parameters` and `macs_per_step` (one input, one timestep).

    For an own network, in place of the latter: its `class`, T, a hash of the names and shapes of its state, the options
    that its factory took and the function that stood in for `net(x)`.
    """
    final: dict[str, Any] | None = None
    """The result: the last epoch's scores."""
    best_on_test: dict[str, Any] | None = None
    """The best epoch, chosen ON THE TEST SET: optimistic, and what the literature reports. Not the result."""
    energy: dict[str, Any] | None = None
    """Operations and energy per layer of the trained network, and of the ANN; null before the end and for an ANN."""
    convs: dict[str, Any] | list[dict[str, Any]] | None = None
    """With `model.conv_impl` auto on a CPU: `rule`, the version of `ops.conv.rule`, and `simd`. In 0.2 a list."""
    failure: str | None = None
    failure_code: str | None = None
    """`InputError.code` of the failure; `not-finite` where a loss, a gradient or a weight was not finite."""
    differences: list[str] = field(default_factory=list)
    """What a resumed run found changed (SIMD level, versions): its bytes may then differ from an undisturbed run's."""
    clock: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATES:
            raise InputError(f"a run's status is one of {', '.join(STATES)}, got {self.status!r}.", "torn-record")

    @property
    def method(self) -> str:
        """The method, `ann`, or `own`; an own network has the configuration's method only if its factory took it."""
        model, own = self.config["model"], "class" in self.network
        if own and "method" not in self.network.get("options", {}):
            return "own"
        return "ann" if model["ann"] and not own else str(self.config["method"])

    def with_(self, **changes: Any) -> "RunRecord":
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_record(path: Path) -> RunRecord:
    """Read a record; one sentence for a file that is missing, torn or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"no run record at {path}: the file is not there. Give a run folder that `mpd-agl train` made.",
            "no-file",
        ) from None
    except OSError as error:
        raise InputError(f"the run record {path} cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise TornRecord(f"the run record {path} is no JSON ({error}). {AGAIN}") from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        got = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise InputError(
            f"the run record {path} has schema {got!r}, and this version reads {SCHEMA}. "
            "Read it with the version that wrote it.",
            "other-version",
        )
    known = {f.name for f in fields(RunRecord)}
    needed = {f.name for f in fields(RunRecord) if f.name not in _OPTIONAL}
    wrong = sorted(set(raw) - known) + sorted(needed - set(raw))
    if wrong:
        raise TornRecord(f"the run record {path} has missing or unknown fields ({', '.join(wrong)[:200]}). {AGAIN}")
    for name, kinds in _KINDS.items():
        if not isinstance(raw.get(name, kinds[0]()), kinds):
            raise TornRecord(f"the run record {path} has a {type(raw[name]).__name__} as its {name}. {AGAIN}")
    return RunRecord(**raw)


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Inside, a missing value or one of the wrong type becomes a sentence: anyone can edit JSON."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise InputError(
            f"the records of {what} are not what was written ({reason[:120]}). "
            "Bring them back from a copy, or train it again.",
            "torn-record",
        ) from error


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "status", "backend"), (str,)),
    **dict.fromkeys(("config", "code", "versions", "hardware", "data", "seeds", "network", "clock"), (dict,)),
    **{name: (dict, type(None)) for name in ("final", "best_on_test", "energy")},
    "convs": (dict, list, type(None)),
    **dict.fromkeys(("failure", "failure_code"), (str, type(None))),
    "differences": (list,),
}


_OPTIONAL = ("final", "best_on_test", "energy", "convs", "failure", "failure_code", "differences", "clock", "schema")


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl in order.

    A torn last line (of a killed run) is left out; a torn one within is an error.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"no metrics at {path} ({error.strerror}). Give a run folder that `mpd-agl train` made.",
            "no-file",
        ) from None
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            if number == len(lines):  # no newline behind it: half-written
                return
            raise InputError(
                f"line {number} of {path} is no JSON object. Resume the run, which repairs the file.", "torn-metrics"
            ) from None
        yield found
