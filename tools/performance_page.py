"""Writes docs/performance.md from the records of tools/measure_performance.sh.

    python tools/performance_page.py [--records docs/results/performance] [--now docs/results/performance-avx512 ...]
                                     [-o docs/performance.md]

`--now` holds the records of this version's defaults, a folder per machine, which the page shows first; `--records`
those of 0.1, on a machine with AVX2 alone.

Every number comes from a record. Where a record is not there, its rows say so.
"""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.workload import Workload

from benchmarks import growth, overview, plot
from mpd_agl.errors import InputError
from mpd_agl.models import pretrained_card
from mpd_agl.records import write_atomic
from mpd_agl.report import draw

RECORDS, PAGE = Path("docs/results/performance"), Path("docs/performance.md")
NOW = (Path("docs/results/performance-avx512"), Path("docs/results/performance-avx512-amd"))
OURS = ("native", "native+auto")
NARROW, FULL, VGG = "train-narrow", "train-full", "train-vggsnn"


@dataclass(frozen=True)
class Target:
    """One thing that the project set out to show."""

    record: str
    against: str
    quantity: str
    """`faster`: time of `against` over ours; `time`: our time over its; `memory`: our peak over its."""
    asked: float


TARGETS = (
    Target(NARROW, "spikingjelly", "faster", 2.5),
    Target(NARROW, "spikingjelly", "memory", 0.4),
    Target(NARROW, "snntorch", "faster", 3.0),
    Target(NARROW, "ann", "time", 0.7),
    Target(NARROW, "convs", "time", 1.25),
    Target(FULL, "spikingjelly", "faster", 1.18),
    Target(FULL, "convs", "time", 1.08),
    Target(VGG, "spikingjelly", "faster", 2.2),
    Target(VGG, "spikingjelly", "memory", 0.4),
    Target("infer-narrow", "spikingjelly", "faster", 3.0),
    Target("infer-full", "spikingjelly", "faster", 1.3),
)
IMAGE, WIDE = "one image, 1/8 of the channels", "inference, all channels, batch 32"
GOALS = (
    Target(NARROW, "spikingjelly", "faster", 3.0),
    Target(NARROW, "ann", "time", 0.6),
    Target(NARROW, "convs", "time", 0.8),
    Target(FULL, "spikingjelly", "faster", 3.0),
    Target(FULL, "convs", "time", 0.45),
    Target(VGG, "spikingjelly", "faster", 3.2),
    Target(WIDE, "spikingjelly", "faster", 4.0),
    Target(WIDE, "ours-int8", "int8", 6.0),
    Target(IMAGE, "spikingjelly", "faster", 4.0),
    Target(IMAGE, "ann", "time", 1.0),
)
"""Of 0.2, for what a user gets by default; `int8`: SpikingJelly's time over that of int8 weights."""
SETTINGS: dict[str, dict[str, Any]] = {
    NARROW: {"work": "train", "model": "resnet19", "width_mult": 0.125, "num_steps": 2, "batch": 100},
    FULL: {"work": "train", "model": "resnet19", "width_mult": 1.0, "num_steps": 2, "batch": 16},
    VGG: {"work": "train", "model": "vggsnn", "width_mult": 0.25, "num_steps": 10, "batch": 16},
    "infer-narrow": {"work": "infer", "model": "resnet19", "width_mult": 0.125, "num_steps": 2, "batch": 64},
    "infer-full": {"work": "infer", "model": "resnet19", "width_mult": 1.0, "num_steps": 2, "batch": 64},
}
NAMES = {
    "spikingjelly": "SpikingJelly",
    "snntorch": "snnTorch",
    "ann": "ANN, batch T*N",
    "convs": "its convolutions",
}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder by name."""
    if not folder.is_dir():
        raise InputError(
            f"no records at {folder}: the folder is not there. Make them with tools/measure_performance.sh."
        )
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text())
        except ValueError:
            raise InputError(f"{path} is no JSON. Delete it and measure again.") from None
    if not found:
        raise InputError(f"no records in {folder}. Make them with tools/measure_performance.sh.")
    return found


def measured(target: Target, record: dict[str, Any], base: str) -> tuple[str, bool] | None:
    """The ratio of one of ours as text, and whether it is what was asked; None where the record does not have it."""
    if any(record["setting"][k] != v for k, v in SETTINGS[target.record].items()):
        return None
    ratios = record["ratios"] if base == "native" else record.get("ratios_auto")
    if ratios is None or ratios["base"] != base or not (ratio := ratios["of"].get(target.against)):
        return None
    if target.quantity == "memory":
        value = 1 / ratio["peak_memory"]
        return f"{value:.2f}x", value <= target.asked
    low, high = ratio["range"]
    if target.quantity == "faster":
        return f"{ratio['time']:.2f}x ({low:.2f} to {high:.2f})", ratio["time"] >= target.asked
    return f"{1 / ratio['time']:.2f}x ({1 / high:.2f} to {1 / low:.2f})", 1 / ratio["time"] <= target.asked


def bound(target: Target, record: dict[str, Any]) -> str:
    """What `dense` could reach: the ratio if our step were its convolutions alone, or that of the step's own memory."""
    of, contenders = record["ratios"]["of"], record["contenders"]
    if target.quantity == "memory":
        own = contenders["native"]["step_bytes"] / contenders[target.against]["step_bytes"]
        return f"{own:.2f}x"
    if target.against == "convs" or not of.get("convs"):
        return ""
    reach = of[target.against]["time"] / min(1, of["convs"]["time"])
    return f"{reach if target.quantity == 'faster' else 1 / reach:.2f}x"


def target_table(records: dict[str, dict[str, Any]]) -> list[str]:
    """Asked, measured with dense convolutions and with conv_impl auto, and what bounds the dense ones."""
    lines = ["| record | against | asked | `dense` | `auto` | bound of `dense` |", "|---|---|---|---|---|---|"]
    words = {
        "faster": ("at least ", "x faster"),
        "time": ("at most ", "x its time"),
        "memory": ("at most ", "x its peak"),
    }
    for target in TARGETS:
        before, after = words[target.quantity]
        asked = f"{before}{target.asked:g}{after}"
        record = records.get(target.record)
        found = {base: measured(target, record, base) if record else None for base in OURS}
        texts = [("not measured" if f is None else f[0] if f[1] else f"**{f[0]}**") for f in found.values()]
        limit = bound(target, record) if record and found["native"] else ""
        lines.append(f"| {target.record} | {NAMES[target.against]} | {asked} | {' | '.join(texts)} | {limit} |")
    grown = {name: rest for name, *rest in growth.ends(records.get("growth-train", {"points": []}))}
    if "native" in grown:
        low, high = grown["native"][:2]
        cells = []
        for name in OURS:
            if name not in grown:
                cells.append("not measured")
                continue
            time_ratio, memory_ratio = grown[name][2:]
            text = f"{time_ratio:.2f}x time, {memory_ratio:.2f}x memory"
            cells.append(text if time_ratio <= 8 and memory_ratio <= 8 else f"**{text}**")
        lines.append(
            f"| growth-train | itself, T={high} against T={low} | at most 8x of both | {' | '.join(cells)} | |"
        )
    return lines


def goal_of(goal: Target, record: dict[str, Any]) -> tuple[str, bool] | None:
    """The ratio of `ours` as text, and whether it reaches the goal; None where the record does not have it."""
    of = record["ratios"]["of"]
    if record["ratios"]["base"] != "ours" or not (ratio := of.get(goal.against)):
        return None
    low, high = ratio["range"]
    if goal.quantity == "int8":
        peer = of["spikingjelly"]
        value, low, high = peer["time"] / ratio["time"], peer["range"][0] / high, peer["range"][1] / low
        return f"{value:.2f}x ({low:.2f} to {high:.2f})", value >= goal.asked
    if goal.quantity == "faster":
        return f"{ratio['time']:.2f}x ({low:.2f} to {high:.2f})", ratio["time"] >= goal.asked
    return f"{1 / ratio['time']:.2f}x ({1 / high:.2f} to {1 / low:.2f})", 1 / ratio["time"] <= goal.asked


def goal_table(machines: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """What the defaults reach of 0.2's goals: a column per machine, from its records."""
    words = {"faster": "at least {:g}x faster", "time": "at most {:g}x its time", "int8": "int8: at least {:g}x faster"}
    lines = [f"| work | against | goal | {' | '.join(machines)} |", "|---|---|---" + "|---" * len(machines) + "|"]
    for goal in GOALS:
        texts = []
        for records in machines.values():
            record = {**records, **records.get("overview", {}).get("works", {})}.get(goal.record)
            found = goal_of(goal, record) if record else None
            texts.append("not measured" if found is None else _bold(*found))
        name = "SpikingJelly" if goal.quantity == "int8" else NAMES[goal.against]
        what = "training, " + WORKS[goal.record] if goal.record in WORKS else goal.record
        lines.append(f"| {what} | {name} | {words[goal.quantity].format(goal.asked)} | {' | '.join(texts)} |")
    work = "T=16 over T=2, training, 1/8 of the channels"
    lines.append(f"| {work} | itself | at most 7x of both | {' | '.join(map(_grown, machines.values()))} |")
    work = "first step, all channels, no costs known yet"
    lines.append(f"| {work} | dense | at most 2 s more | {' | '.join(map(_first_step, machines.values()))} |")
    return lines


def _bold(text: str, reached: bool) -> str:
    return text if reached else f"**{text}**"


def _grown(records: dict[str, dict[str, Any]]) -> str:
    for name, _, _, longer, larger in growth.ends(records.get("growth-train", {"points": []})):
        if name == "ours":
            parts = _bold(f"{longer:.2f}x time", longer <= 7), _bold(f"{larger:.2f}x memory of the step", larger <= 7)
            return ", ".join(parts)
    return "not measured"


def _first_step(records: dict[str, dict[str, Any]]) -> str:
    if not (found := records.get("first-step")):
        return "not measured"
    ours, dense = (found["median"][name] for name in ("auto", "dense"))
    return _bold(f"{ours:.2f} s, dense {dense:.2f} s", ours - dense <= 2)


def growth_lines(record: dict[str, Any]) -> list[str]:
    """How much the process's peak memory grows from the fewest compared timesteps to the most."""
    for name, low, high, *_ in growth.ends(record):
        if name == "ours":
            points = [p for p in record["points"] if p["axis"] == "num_steps"]
            peaks = {p["value"]: p["contenders"]["ours"]["peak_bytes"] for p in points}
            text = GROWTH_TEXT.format(peak=peaks[high] / peaks[low], low=low, high=high)
            return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]
    return []


def defaults(folders: Sequence[Path], out: Path) -> list[str]:
    """The page's first part: what this version reaches by default; the first folder's machine in detail."""
    every = {os.path.relpath(folder, out.parent): read(folder) for folder in folders}
    named = {_cpu(records): records for records in every.values()}
    lines = ["## What you get by default", "", "Measured on machines with AVX-512 and VNNI:", ""]
    for records in every.values():
        lines += machines({**records, **records.get("overview", {}).get("works", {})})
    lines += ["", DEFAULTS_TEXT, f"Records: {', '.join(f'[{where}]({where})' for where in every)}.", ""]
    lines += [*goal_table(named), "", *beside(folders[0])]
    lines += [*textwrap.wrap(NOW_MISSES, 120, break_on_hyphens=False), ""]
    where, records = next(iter(every.items()))
    lines += growth_lines(records.get("growth-train", {"points": []}))
    if "overview" in records:
        lines += ["`mpd-agl bench` prints:", "", "```", overview.text(records["overview"]), "```", ""]
    for name, record in records.items():
        if "ratios" in record:
            lines += comparison(name, record, f"{where}/{name}.svg")
    return lines


def _cpu(records: dict[str, dict[str, Any]]) -> str:
    """The processor that records were measured on, as a column names it."""
    record = next(r for r in records.values() if "hardware" in r)
    return str(record["hardware"]["cpu"]).replace("(R)", "").replace(" Processor", "")


def beside(folder: Path) -> list[str]:
    """What belongs to the goals and is no ratio: accuracy with int8 weights."""
    lines = []
    int8 = folder.parent / "pretrained-int8.json"
    if int8.is_file():
        as_stored = 100 * pretrained_card("cifar10").check["stored"]["accuracy"]
        whole = 100 * json.loads(int8.read_text(encoding="utf-8"))["results"][0]["accuracy"]
        lines += [
            f"The trained network of the package answers {as_stored:.2f} % of CIFAR-10's test set rightly, and "
            f"{whole:.2f} % with int8 weights",
            "(`mpd-agl evaluate --pretrained cifar10 --int8`; [record](results/pretrained-int8.json)).",
            "",
        ]
    return lines


def comparison(name: str, record: dict[str, Any], figure: str) -> list[str]:
    """One record as a table and a figure."""
    of, base = record["ratios"]["of"], record["ratios"]["base"]
    lines = [
        f"### {name}",
        "",
        f"{Workload.from_dict(record['setting']).title}; {record['rounds']} rounds",
        "",
        f"| contender | time / {base} | peak / {base} | ms per image | spread | peak MB | step MB | first step s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for who, c in plot.ordered(record):
        ratio = of[who]
        first = f"{ratio['time']:.2f} | {ratio['peak_memory']:.2f}" if ratio else "outputs differ |"
        lines.append(
            f"| {who} | {first} | {c['ms_per_image']:.3f} | {c['spread'][0]:.3f} - {c['spread'][1]:.3f} "
            f"| {c['peak_bytes'] / 1e6:.0f} | {c['step_bytes'] / 1e6:.0f} | {c['first_step_s']:.1f} |"
        )
    lines += [f"\nLeft out: {who}, {why}." for who, why in record["left_out"].items()]
    return [*lines, "", f"![time and memory of every contender]({figure})", ""]


def grown(record: dict[str, Any], figure: str) -> list[str]:
    """A sweep as a figure and a table."""
    s = record["setting"]
    what = "a training step" if s["work"] == "train" else "inference"
    lines = [
        f"### How {what} grows",
        "",
        *prose(
            f"{s['model']}, around width_mult {s['width_mult']:g}, T={s['num_steps']}, batch {s['batch']} (16 where "
            "width_mult moves). Over T in training there are five rounds, elsewhere two."
        ),
        "",
        f"![time and memory over T, batch and width_mult]({figure})",
        "",
        "| | contender | ms per step | ms per image | memory of a step, MB | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for p in record["points"]:
        for name, c in p["contenders"].items():
            lines.append(
                f"| {plot.LABELS[p['axis']]} {p['value']:g} | {name} | {c['ms_per_image'] * p['setting']['batch']:.1f} "
                f"| {c['ms_per_image']:.3f} | {c['step_bytes'] / 1e6:.0f} | {c['peak_bytes'] / 1e6:.0f} |"
            )
    return [*lines, ""]


def prose(text: str) -> list[str]:
    """A paragraph in lines."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def machines(records: dict[str, dict[str, Any]]) -> list[str]:
    """Every machine and commit that the records name, with how quiet it was; first those that measured peers."""
    quiet: dict[str, list[str]] = {}
    for record in sorted(records.values(), key=lambda r: not _peers(r)):
        if "hardware" not in record:
            continue
        h, v, code = record["hardware"], record["versions"], record["code"]
        commit = (code["commit"] or "unknown")[:9] + (", files changed" if code["changed"] else "")
        what = ", ".join(
            [
                f"{h['cpu']}, {h['cores']} core{'s' * (h['cores'] > 1)}, {h['memory_gb']} GB, torch {v['torch']}",
                *_peers(record),
            ]
        )
        quiet.setdefault(f"{what}; commit {commit}", []).extend([record, *record.get("points", [])])
    lines = []
    for what, found in quiet.items():
        slow = [s for r in found for s in r.get("slowdown", ())]
        loads = [r["load_before"] for r in found if r.get("load_before") is not None]
        if slow:
            what += f"; a fixed loop between rounds took at most {max(slow):.2f} times its best"
        elif loads:
            what += f"; load average before each record, its predecessor's own included: up to {max(loads):.1f}"
        first, *rest = prose(f"- {what}")
        lines += [first, *(f"  {line}" for line in rest)]
    return lines


def _peers(record: dict[str, Any]) -> list[str]:
    found = {n: record.get("versions", {}).get(n, "not installed") for n in ("spikingjelly", "snntorch")}
    return [f"{name} {version}" for name, version in found.items() if version != "not installed"]


def answers(records: dict[str, dict[str, Any]], where: str) -> list[str]:
    """What `mpd-agl evaluate --json` said of one run: the plain path, the fast one, int8 weights, early answers."""
    lines: list[str] = []
    for name in ("evaluate-plain", "evaluate-fast", "evaluate-int8"):
        if name in records:
            r = records[name]["results"][0]
            lines.append(
                f"| {name.removeprefix('evaluate-')} | {100 * r['accuracy']:.2f} % | {r['loss']:.5f} | {r['samples']} |"
            )
    if lines:
        lines = [
            "## Inference of a trained network",
            "",
            "| path | accuracy | loss | samples |",
            "|---|---|---|---|",
            *lines,
            "",
        ]
    if "evaluate-early" not in records:
        return lines
    record = records["evaluate-early"]
    model, result = record["config"]["model"], record["results"][0]
    lines += [
        "### Early answers",
        "",
        *prose(
            f"{model['name']}, width_mult {model['width_mult']:g}, on {record['config']['data']}, "
            f"T={result['num_steps']}, {record['threads']} threads. A sample ends at the first step at which the "
            "softmax of its mean logits reaches the threshold, and its later steps are not computed."
        ),
        "",
        f"![accuracy against timesteps and time]({where}/evaluate-early.svg)",
        "",
        "| threshold | accuracy | timesteps, mean | ms per image |",
        "|---|---|---|---|",
    ]
    for e in result["early"]:
        lines.append(
            f"| {e['threshold']:g} | {100 * e['accuracy']:.2f} % | {e['mean_steps']:.3f} | {e['ms_per_image']:.3f} |"
        )
    return [*lines, ""]


INTRODUCTION = """Every contender runs in its own process and best setting. Rounds alternate; a ratio is the median over
rounds of times from the same round, with its range in brackets. All load the same weights, and no ratio is given where
their outputs differ (the records say how each was checked). Peers use a fixed surrogate width; ours follows the
potentials. Networks are freshly initialised and fire as they do then. No contender gives freed memory back to the
system between steps (`--fresh-pages` lets it). Peaks are of whole processes."""
TARGETS_TEXT = """`dense` takes torch's convolutions, as all contenders do. `auto` computes each pass of each
convolution in the fastest of three ways: dense, event-driven ([active.md](active.md)), or in Winograd's form.
Bold: not reached.
The bound is what `dense` could reach if our step were nothing but its convolutions, which both sides need; for memory
it is what the step adds, without the Python, torch and weights that every process holds."""
MISSES = """Where `auto` misses, the layers are narrow (16 to 64 channels): lists are short, Winograd's transforms weigh
more, and what no way of convolution touches (tdBN, neurons, the framework's own time per layer) is a larger share of
the step."""


WORKS = {
    NARROW: "1/8 of the channels, batch 100",
    FULL: "all channels, batch 16",
    VGG: "VGGSNN 1/4, T=10, batch 16",
}
DEFAULTS_TEXT = """`ours` is what a user gets without a flag: `conv_impl="auto"` in training, a plan in inference
([active.md](active.md)). Ratios are medians over rounds with their range; bold ones miss their goal. The bare
convolutions are torch's dense ones, without norms, neurons, loss or optimizer. The records
say how far the machine itself slowed a fixed loop down between rounds."""
NOW_MISSES = """What is missed, and what we know of it. In training with 1/8 of the channels most of a step is still
convolutions; tdBN and neurons, the framework's time per layer and sums of gradients are the rest. Winograd's form
gains least there: with 16 channels the transforms of its tiles are as much work as the products. With all channels a
third of the multiply-adds, the input gradients, meets no zeros: gradients that come from tdBN have none. Winograd's
form computes those of stride 1, and those of stride 2 remain dense."""
GROWTH_TEXT = """A step keeps the convolutions' outputs and spikes of every timestep, so its own memory grows as T does
(`model.recompute` keeps less); the process's peak grows by {peak:.1f}x from T={low} to T={high}."""


def write(folder: Path, out: Path, now: Sequence[Path] = ()) -> None:
    """Read the records, draw the figures beside them, write the page."""
    records = read(folder)
    order = list(SETTINGS)
    named = sorted(records, key=lambda n: (order.index(n) if n in order else len(order), n))
    comparisons = {n: records[n] for n in named if "ratios" in records[n]}
    sweeps = {n: r for n, r in records.items() if "points" in r}
    where = os.path.relpath(folder, out.parent)
    about = {n: CONTENDERS[n].about for r in comparisons.values() for n in r["contenders"]}
    lines = ["# Performance", ""]
    if now := [each for each in now if each.is_dir()]:
        for name, record in read(now[0]).items():
            if "ratios" in record:
                write_atomic(now[0] / f"{name}.svg", draw.svg_file(plot.bars(record)))
        lines += [*defaults(now, out), "## 0.1 on another machine, with AVX2", ""]
    lines += ["Measured on:", "", *machines(records), "", INTRODUCTION]
    lines += [f"Made by `tools/measure_performance.sh`; records in [{where}]({where}).", ""]
    lines += ["## Targets", "", TARGETS_TEXT, "", *target_table(records), "", MISSES, "", "## Comparisons", ""]
    lines += [*(f"- `{name}`: {text}" for name, text in sorted(about.items())), ""]
    for name, record in comparisons.items():
        write_atomic(folder / f"{name}.svg", draw.svg_file(plot.bars(record)))
        lines += comparison(name, record, f"{where}/{name}.svg")
    if sweeps:
        lines += ["## Growth", ""]
    for name, record in sweeps.items():
        write_atomic(folder / f"{name}.svg", draw.svg_file(plot.curves(record)))
        lines += grown(record, f"{where}/{name}.svg")
    lines += answers(records, where)
    write_atomic(out, ("\n".join(lines).rstrip() + "\n").encode())


def main(argv: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS, help=f"their folder (default {RECORDS})")
    parser.add_argument("--now", type=Path, nargs="+", help="folders of this version's records, a machine each")
    parser.add_argument("-o", "--out", type=Path, default=PAGE, help=f"the page (default {PAGE})")
    a = parser.parse_args(argv)
    try:
        write(a.records, a.out, a.now or (NOW if a.records == RECORDS else ()))
    except InputError as error:
        sys.exit(str(error))
    print(f"{a.out} written from the records in {a.records}")


if __name__ == "__main__":
    main()
