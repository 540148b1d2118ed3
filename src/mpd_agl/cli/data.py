"""`mpd-agl data list | fetch NAME | verify NAME | show NAME`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError

if TYPE_CHECKING:
    from mpd_agl.data.verify import Report

EXAMPLES = """examples:
  mpd-agl data fetch cifar10                            download, convert and check
  mpd-agl data verify cifar10 --data-dir ~/cifar        read the files of a folder through
  mpd-agl data show mnist5k -o sheet.png                look at some samples
  mpd-agl data verify folder --data-dir ~/flowers       count and hash your own images, DIR/CLASS/*
"""


def parser() -> argparse.ArgumentParser:
    """The options of the four subcommands."""
    main = Parser(
        prog="mpd-agl data",
        description="List, fetch, verify and show data sets.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="name the data sets and say what is in the cache")
    fetch = commands.add_parser("fetch", help="bring a data set into the cache: official address, or a mirror")
    verify = commands.add_parser("verify", help="read every sample; print counts, means and hashes")
    show = commands.add_parser(
        "show", help="write a PNG with labelled samples; a set that is not in the cache is brought there first"
    )
    for command in (fetch, verify, show):
        command.add_argument("name", metavar="NAME", help="a data set's name, as `mpd-agl data list` prints it")
        command.add_argument(
            "--data-dir", type=Path, metavar="DIR", help="folder or archive with the official files, or your own"
        )
        command.add_argument("--allow-partial", action="store_true", help="take a part of the data set as well")
    for command in (listing, fetch, verify, show):
        command.add_argument("--cache-dir", type=Path, metavar="DIR", help="in place of $MPD_AGL_CACHE")
    for command in (verify, show):
        command.add_argument("--image-size", type=int, metavar="N", help="see data.image_size of train")
        command.add_argument("--colour", choices=("auto", "rgb", "grey"), help="of your own images")
    show.add_argument("-o", "--out", type=Path, metavar="FILE", help="the PNG to write (NAME.png)")
    show.add_argument("--split", choices=("train", "test"), default="train")
    return main


def run(argv: list[str]) -> int:
    """Run `mpd-agl data ...`; return the exit code."""
    args = parser().parse_args(argv)
    if args.command == "list":
        print(_table(args.cache_dir), end="")
        return 0
    common = {"data_dir": args.data_dir, "cache_dir": args.cache_dir, "allow_partial": args.allow_partial}
    own = {k: v for k in ("image_size", "colour") if (v := getattr(args, k, None)) is not None}
    if args.command == "show":
        return _show(args.name, args.out, args.split, common, own)
    from mpd_agl.data import load, registry
    from mpd_agl.data.verify import verify

    if args.command == "fetch" and not args.name.startswith("mnist5k"):
        spec = registry.published(args.name)
        load.open_files(spec, spec.load_options({}, **common))
    print(_report(verify(args.name, **common, **own)), end="")
    return 0


def _show(name: str, out: Path | None, split: str, common: dict[str, Any], own: dict[str, Any]) -> int:
    from mpd_agl.data import registry
    from mpd_agl.data.show import show

    out = out or Path(f"{name}.png")
    if out.suffix.lower() != ".png":
        raise InputError(f"`show` writes PNG files, got {out}. Use -o {out.with_suffix('.png').name}.")
    before = _cached(common["cache_dir"])
    show(name, out, split=split, options=registry.get(name).load_options(own, **common))
    for place in sorted(_cached(common["cache_dir"]) - before):
        size = sum(path.stat().st_size for path in (place, *place.rglob("*")) if path.is_file()) / 1e6
        print(
            f"mpd-agl: {name} was read once and is kept for training in {place} ({size:,.1f} MB); remove it to "
            "free the space",
            file=sys.stderr,
        )
    print(out)
    return 0


def _cached(cache_dir: Path | None) -> set[Path]:
    """What the cache holds of all sets: converted images, unpacked recordings, frames."""
    from mpd_agl.data.sources import cache_root

    kinds = ("converted/*", "unpacked/*", "frames/*.npy")
    return {place for kind in kinds for place in cache_root(cache_dir).glob(kind)}


def _table(cache_dir: Path | None) -> str:
    from mpd_agl.data.fileset import FileSet
    from mpd_agl.data.registry import DATASETS
    from mpd_agl.data.sources import cache_root
    from mpd_agl.plugins import load_plugins

    load_plugins()
    cache = cache_root(cache_dir)
    rows = [("name", "samples", "shape", "classes", "state", "licence")]
    own = []
    for spec in DATASETS.values():
        if spec.name.startswith("mnist5k"):
            state = "embedded"
        elif not isinstance(spec, FileSet) or not spec.published:
            own.append(f"  {spec.name:13} {spec.title}")
            continue
        elif (cache / "converted" / spec.name).is_dir() or (cache / "unpacked" / spec.name).is_dir():
            state = "in the cache"
        else:
            state = "to fetch" if spec.remote or spec.mirror else "by hand"
        samples = " + ".join(f"{n:,}" for n in spec.counts.values())
        rows.append((spec.name, samples, "x".join(map(str, spec.shape)), str(spec.num_classes), state, spec.licence))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row[:5], widths, strict=True)), row[5]]) for row in rows]
    return "\n".join([*lines, "", "your own data, with --data-dir:", *own, "", f"cache: {cache}"]) + "\n"


def _report(report: "Report") -> str:
    lines = [f"{report.name}: {report.source}"]
    for split, found in report.splits.items():
        low, high = min(found.per_class), max(found.per_class)
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        part = "" if found.count == found.official else f" of {found.official:,} (partial)"
        lines.append(f"  {split:5}  {found.count:,}{part} samples, {len(found.per_class)} classes, {each} per class")
        for name, values in found.means.items():
            digits = 1 if name.startswith("events") else 4
            lines.append(f"         {name} ({' '.join(f'{v:.{digits}f}' for v in values)})")
        lines.append(f"         sha256 {found.sha256} ({found.checked})")
    lines.append("partial: taken because --allow-partial was given" if report.partial else "complete")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
