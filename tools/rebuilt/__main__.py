"""Whether the redesign of 0.3 is done: python -m tools.rebuilt [--only CHECK ...] [--list].

One line per finding; exit 0 only where every check holds. Goes when 0.3 is released.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.rebuilt.checks import CHECKS, Work
from tools.rebuilt.trees import Failed


def main() -> int:
    """Run the chosen checks."""
    parser = argparse.ArgumentParser(prog="python -m tools.rebuilt", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CHECKS), help="may be given several times")
    parser.add_argument("--group", action="append", default=[], help="of curves (demo, state, ...), or a mutant's name")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mpd-agl-rebuilt")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{name:10}{check.__doc__}" for name, check in CHECKS.items()))
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Work(cache=args.cache, folder=Path(folder), groups=args.group, jobs=args.jobs)
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
