"""How a fault's tries are counted and written: one JSON record per row of docs/reliability.md."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from mpd_agl import records


@dataclass
class Tally:
    """What happened: tries by kind, those that held, the worst figures, and what failed."""

    kinds: Counter[str] = field(default_factory=Counter)
    held: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    timed: ClassVar[bool] = True
    """Whether limits of time count. The test suite runs on busy machines and turns this off; `make faults` does not."""

    @property
    def tries(self) -> int:
        return sum(self.kinds.values())

    def at_most(self, name: str, value: float, limit: float | None = None) -> None:
        """Keep the largest value of a figure; fail the try where it passes the limit."""
        self.worst[name] = max(self.worst.get(name, value), value)
        assert limit is None or value <= limit, f"{name} is {value:.4g}, over {limit:.4g}"

    def at_most_s(self, name: str, seconds: float, limit: float) -> None:
        """As `at_most`, for a time."""
        self.at_most(name, seconds, limit if self.timed else None)

    @contextmanager
    def attempt(self, kind: str, what: str = "") -> Iterator[None]:
        """One try. Whatever is raised inside counts as not held and is written down; the next try goes on."""
        self.kinds[kind] += 1
        try:
            yield
        except Exception as error:
            self.failures.append(f"{kind} {what}: {type(error).__name__}: {str(error)[:400]}".replace("\n", " "))
        else:
            self.held += 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: what is done, how often at night, and what must hold."""

    fault: str
    must_hold: str
    nightly: int
    run: Callable[[Path, int, Random], Tally]


def record(name: str, row: Row, tally: Tally, *, seed: int, command: str, began: float) -> dict[str, Any]:
    """A row's result with its provenance; no host, no folder."""
    return {
        "row": name,
        "fault": row.fault,
        "must_hold": row.must_hold,
        "tries": tally.tries,
        "held": tally.held,
        "kinds": dict(sorted(tally.kinds.items())),
        "worst": {k: round(v, 4) for k, v in sorted(tally.worst.items())},
        "facts": tally.facts,
        "failures": tally.failures[:20],
        "seed": seed,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(time.time() - began, 1),
        "code": records.code(),
        "versions": records.versions(),
        "hardware": records.hardware(),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
