"""How long the network in the box takes to its accuracy on two cores, and how long SpikingJelly would take.

    python -m tools.time_to_accuracy --steps docs/results/step-t1.json docs/results/step-t2.json [--runs RUN_DIR ...]

The card of the network knows how each of its runs ended. Where the folders of its last runs are given, first to last,
the figure also shows their epochs; without them it shows those that the record of before has. `--steps` are records of
`mpd-agl bench train --batch 100 --method mpd-gain --contenders ours spikingjelly`, one with `--T 1` and one with `--T
2`. Hours are training images times the measured step, for both in the same way: what a test pass or a busy machine adds
is not in them. Writes docs/results/time.json, time.png, and its place in docs/evidence.md.
"""

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tools.active_page import between

from mpd_agl.errors import InputError
from mpd_agl.models import pretrained
from mpd_agl.records import canonical, reading, write_atomic
from mpd_agl.report import draw
from mpd_agl.report.runs import read_run

OUT, PAGE = Path("docs/results"), Path("docs/evidence.md")
LEVELS = (0.80, 0.83, 0.84, 0.85, 0.90)
NAMES = {"ours": "ours", "spikingjelly": "SpikingJelly 2.0"}
WHAT = "tools.time_to_accuracy"


def step_of(path: Path) -> tuple[int, dict[str, Any]]:
    """T of a bench record, and the milliseconds per image of both contenders on its machine."""
    with reading(path):
        record = json.loads(path.read_text(encoding="utf-8"))
        setting, found = record["setting"], record["contenders"]
        wanted = {"work": "train", "width_mult": 0.125, "model": "resnet19", "method": "mpd-gain", "batch": 100}
        if other := [key for key, value in wanted.items() if setting[key] != value]:
            raise InputError(f"{path} measured another step ({', '.join(other)} differ). Measure the network's own.")
        told = {name: round(found[name]["ms_per_image"], 4) for name in NAMES}
        more = {"threads": setting["threads"], "hardware": record["hardware"]}
        return setting["num_steps"], {**told, **more, "code": record["code"]}


def steps_of(paths: list[Path]) -> dict[int, dict[str, Any]]:
    """The measured steps by T, all of one machine and one number of threads."""
    steps = dict(map(step_of, paths))
    if len(steps) < len(paths) or len({(s["threads"], str(s["hardware"])) for s in steps.values()}) > 1:
        raise InputError("--steps takes one record for each T, all of one machine and one number of threads.")
    return steps


def parts_of(card: str, runs: list[Path], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs behind a network, first to last: T, images, how each ended, and its epochs.

    Epochs are known where a run's folder is given, or where the record of before has them for the same run.
    """
    known = pretrained.pretrained_card(card)
    if any("card" in told for told in known.check["before"]):
        raise InputError(f"the runs of {card!r} began with another card's weights. Name a card that began with none.")
    samples = known.record["data"]["train"]["samples"]
    found: list[dict[str, Any]] = []
    for told in (*known.check["before"], known.record):
        epochs = told["config"]["train"]["epochs"]
        part = {"num_steps": told["config"]["model"]["num_steps"], "epochs": epochs, "images": epochs * samples}
        part |= {"accuracy": told["final"]["test_accuracy"]}
        same = next((b for b in before if {k: b[k] for k in part} == part), {"by_epoch": None})
        found.append({**part, "by_epoch": same["by_epoch"]})
    if len(runs) > len(found):
        raise InputError(f"{card!r} has {len(found)} runs, got {len(runs)} folders. Name its last ones.")
    for part, path in zip(reversed(found), reversed(runs), strict=False):
        run = read_run(path)
        if run.record.final is None or run.record.final["test_accuracy"] != part["accuracy"]:
            raise InputError(f"{path} is not the run of {card!r} that ended at {part['accuracy']}. Name its last ones.")
        part["by_epoch"] = [round(e["test_accuracy"], 4) for e in run.epochs]
    return found


def ends(parts: list[dict[str, Any]], steps: dict[int, dict[str, Any]], who: str) -> list[float]:
    """Hours at the end of each run."""
    hours, out = 0.0, []
    for part in parts:
        if part["num_steps"] not in steps:
            raise InputError(f"no step at T = {part['num_steps']} was measured. Give its record with --steps.")
        hours += part["images"] * steps[part["num_steps"]][who] / 3.6e6
        out.append(hours)
    return out


def curves(parts: list[dict[str, Any]], steps: dict[int, dict[str, Any]], who: str) -> list[tuple[float, float]]:
    """Hours and test accuracy: after every epoch where it is known, else at a run's end."""
    out, began = [], 0.0
    for part, ended in zip(parts, ends(parts, steps, who), strict=True):
        by_epoch, epochs = part["by_epoch"], part["epochs"]
        known = enumerate(by_epoch, 1) if by_epoch else [(epochs, part["accuracy"])]
        out += [(began + (ended - began) * k / epochs, accuracy) for k, accuracy in known]
        began = ended
    return out


def table(parts: list[dict[str, Any]], steps: dict[int, dict[str, Any]]) -> list[list[str]]:
    """Hours to each level, at the end of the first run that ended there."""
    by_who = {who: [*zip(ends(parts, steps, who), (p["accuracy"] for p in parts), strict=True)] for who in NAMES}
    rows = []
    for level in LEVELS:
        first = {who: next((h for h, a in curve if a >= level), None) for who, curve in by_who.items()}
        rows.append([f"{100 * level:.0f} %", *("not reached" if h is None else f"{h:.2f} h" for h in first.values())])
    return rows


def picture(parts: list[dict[str, Any]], steps: dict[int, dict[str, Any]]) -> bytes:
    """Accuracy over hours, ours and SpikingJelly's; dots where a run ended at rate 0."""
    with draw.style():
        figure, (axes,) = draw.new(width=5.2, height=3.0)
        for who, colour in zip(NAMES, draw.COLOURS, strict=False):
            points = curves(parts, steps, who)
            name = NAMES[who] if who == "ours" else f"{NAMES[who]}, at its measured step"
            axes.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.3)
            last = [p["accuracy"] for p in parts]
            axes.plot(ends(parts, steps, who), last, "o", color=colour, markersize=4, label="_ends")
        axes.axhline(0.9, color=draw.SOFT, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"hours of training steps on {next(iter(steps.values()))['threads']} cores")
        axes.set_ylabel("test accuracy")
        axes.set_xlim(left=0)
        draw.percent(axes.yaxis)
        draw.legend(figure, axes, 2)
        return draw.png_file(figure)


def lines(record: dict[str, Any]) -> list[str]:
    """The place in the page."""
    steps = record["steps"]
    told = "; ".join(
        f"T = {T}: {s['ours']:.2f} ms against {s['spikingjelly']:.2f} ms" for T, s in sorted(steps.items())
    )
    chain = ", then ".join(f"{p['epochs']} epochs at T = {p['num_steps']}" for p in record["parts"])
    first = next(iter(steps.values()))
    text = (
        f"Hours of training steps on {first['threads']} cores ({first['hardware']['cpu']}) until the end of the first "
        f"run whose last epoch has the accuracy. They are computed: images times the measured step per image ({told}), "
        f"without test passes; the runs themselves took one core. They were, on all of CIFAR-10: {chain}. SpikingJelly "
        "did not run them: its hours are the same images at its step. In the figure dots are ends of runs, lines the "
        "epochs between. [Record](results/time.json)."
    )
    return [
        "![Test accuracy over hours](results/time.png)",
        "",
        f"| test accuracy | {' | '.join(NAMES.values())} |",
        "|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in record["table"]),
        "",
        *textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False),
        "",
        "```bash",
        "python -m tools.time_to_accuracy --steps docs/results/step-t1.json docs/results/step-t2.json",
        "```",
    ]


def main(argv: list[str] | None = None) -> int:
    """Write record, picture and the page's place."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="the network's last runs")
    p.add_argument("--card", default="cifar10", help="a trained network by its name or card (default cifar10)")
    p.add_argument("--steps", type=Path, nargs="+", required=True, metavar="FILE")
    p.add_argument("--out", type=Path, default=OUT)
    p.add_argument("--page", type=Path, default=PAGE)
    a = p.parse_args(argv)
    try:
        kept = a.out / "time.json"
        with reading(kept):
            before = json.loads(kept.read_text(encoding="utf-8"))["parts"] if kept.is_file() else []
            parts = parts_of(a.card, a.runs, before)
        steps = steps_of(a.steps)
        record = {"what": WHAT, "parts": parts, "steps": steps, "table": table(parts, steps)}
        drawn = picture(parts, steps)
        text = between(a.page.read_text(encoding="utf-8"), "time", lines(record), a.page)
        write_atomic(a.out / "time.json", canonical(record))
        write_atomic(a.out / "time.png", drawn)
        write_atomic(a.page, text.encode())
    except InputError as error:
        print(f"time_to_accuracy: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"time_to_accuracy: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    print(f"{a.out / 'time.json'}: {', '.join(' '.join(row) for row in record['table'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
