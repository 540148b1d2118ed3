"""Mutated data files, configurations, manifests, records: the suite's fuzz tests with many more cases, each counted."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.tally import Tally

DATA, RECORDS = 9_700, 620
"""Cases that the suite's own tests run, about: hypothesis ends early where it has seen all."""
SLOW_S = 20.0


def run(folder: Path, tries: int, draw: Random) -> Tally:
    """Half of the tries on data files, half on the rest; a case held if its test passed within SLOW_S."""
    os.environ["MPD_AGL_FUZZ"] = str(max(1, -(-tries // 2 // DATA)))
    os.environ["MPD_AGL_FUZZ_RECORDS"] = str(max(1, -(-tries // 2 // RECORDS)))
    from tests.data import test_readers_fuzz as data
    from tests.faults import test_mutated_records as other

    tally = Tally()
    fixtures = other_fixtures(other, folder)
    for module in (data, other):
        for name, test in sorted(vars(module).items()):
            if name.startswith("test_") and hasattr(test, "hypothesis"):
                place = folder / name
                place.mkdir()
                count(tally, name.removeprefix("test_").replace("_", " "), test, {**fixtures, "place": place})
    tally.facts = {"cases by hypothesis, derandomized": True}
    return tally


def count(tally: Tally, name: str, test: Any, fixtures: dict[str, Any]) -> None:
    inner: Callable[..., None] = test.hypothesis.inner_test
    seen = 0

    def counted(*args: Any, **options: Any) -> None:
        nonlocal seen
        seen += 1
        began = time.perf_counter()
        inner(*args, **options)
        tally.at_most_s("seconds for a case", time.perf_counter() - began, SLOW_S)

    test.hypothesis.inner_test = counted
    wanted = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    before = tally.held
    try:
        test(**{k: v for k, v in fixtures.items() if k in wanted})
        tally.held = before + seen
    except Exception as error:
        tally.held = before + seen - 1
        tally.failures.append(f"{name}: {type(error).__name__}: {str(error)[:400]}".replace("\n", " "))
    finally:
        test.hypothesis.inner_test = inner
    tally.kinds[name] += seen
    print(name, seen, flush=True)


def other_fixtures(other: Any, folder: Path) -> dict[str, Any]:
    """What pytest would make."""
    saved = unwrapped(other.saved)(folder)
    stopped = unwrapped(other.stopped)(folder)
    return {"saved": saved, "stopped": stopped, "restorer": other.Restorer(stopped), "net": unwrapped(other.net)()}


def unwrapped(fixture: Any) -> Callable[..., Any]:
    """The function under `@pytest.fixture`."""
    function: Callable[..., Any] = getattr(fixture, "__wrapped__", None) or fixture._get_wrapped_function()
    return function
