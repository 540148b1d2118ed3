"""Whether the redesign of 0.3 is done: python -m tools.rebuilt [--only CHECK ...] [--list].

One line per finding; exit 0 only where every check holds. Goes when 0.3 is released.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.rebuilt.compare import Line, compare_curves
from tools.rebuilt.trees import RANKED, SRC, Failed, measure, wheel


class Work:
    """What the checks share."""

    def __init__(self, cache: Path, folder: Path, groups: list[str]) -> None:
        self.cache, self.folder, self.groups = cache, folder, groups


def curves(work: Work) -> Iterator[Line]:
    """50-step loss curves, blocks with state and two processes are 0.2's (about 4 minutes)."""
    for group in work.groups or ["demo", "resnet19", "vggsnn", "state", RANKED]:
        old = measure(group, wheel(work.cache), work.folder, "old")
        new = measure(group, SRC, work.folder, "new")
        for name, result in old.items():
            yield compare_curves(name, result, new[name])


CHECKS: dict[str, Callable[[Work], Iterator[Line]]] = {"curves": curves}


def main() -> int:
    """Run the chosen checks."""
    parser = argparse.ArgumentParser(prog="python -m tools.rebuilt", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CHECKS), help="may be given several times")
    parser.add_argument("--group", action="append", default=[], help="of curves: demo, resnet19, vggsnn, state, ranks")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mpd-agl-rebuilt")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{name:10}{check.__doc__}" for name, check in CHECKS.items()))
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Work(args.cache, Path(folder), args.group)
        for check in args.only or CHECKS:
            lines = 0
            try:
                for line in CHECKS[check](work):
                    lines += 1
                    failed += not line.holds
                    print(f"{'pass' if line.holds else 'FAIL'}  {check:8} {line.name}: {line.figure}", flush=True)
            except Failed as error:
                failed += 1
                print(f"FAIL  {check:8} could not finish: {error}", flush=True)
            if not lines:
                failed += 1
                print(f"FAIL  {check:8} found nothing to look at", flush=True)
    print(f"{failed} of the lines above fail" if failed else "all hold")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
