"""docs/performance.md from the records: the targets with what was measured and what holds back, every comparison, how cost grows.

Numbers come from the records alone. A record that is not there leaves its rows out, and the page says how to make it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpd_agl.bench import growth, plot
from mpd_agl.bench.setting import from_dict
from mpd_agl.errors import InputError
from mpd_agl.records import write_atomic
from mpd_agl.report import draw

OURS = ("native", "native+auto")
NARROW, FULL, VGG = "train-narrow", "train-full", "train-vggsnn"


@dataclass(frozen=True)
class Target:
    """One thing that the project set out to show: `asked` is a ratio of `against` to ours (`faster`), or of ours to `against`."""

    work: str
    record: str
    against: str
    quantity: str
    """`faster` and `time`: of times; `memory`: of peaks."""
    asked: float


TARGETS = (
    Target("training step, ResNet-19 at 1/8 width, T=2, batch 100", NARROW, "spikingjelly", "faster", 2.5),
    Target("the same", NARROW, "spikingjelly", "memory", 0.4),
    Target("the same", NARROW, "snntorch", "faster", 3.0),
    Target("the same", NARROW, "ann", "time", 0.7),
    Target("the same", NARROW, "convs", "time", 1.25),
    Target("training step, full width, batch 16", FULL, "spikingjelly", "faster", 1.18),
    Target("the same", FULL, "convs", "time", 1.08),
    Target("training step, VGGSNN at 1/4 width, 48x48, T=10, batch 16", VGG, "spikingjelly", "faster", 2.2),
    Target("the same", VGG, "spikingjelly", "memory", 0.4),
    Target("inference, ResNet-19 at 1/8 width, T=2, batch 64", "infer-narrow", "spikingjelly", "faster", 3.0),
    Target("inference, full width", "infer-full", "spikingjelly", "faster", 1.3),
)
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
    "ann": "the ANN, batch T*N",
    "convs": "its convolutions alone",
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
    """Against that one of ours, whether it is what was asked; None where the record lacks one of both or is of another setting."""
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


def holds_back(target: Target, record: dict[str, Any]) -> str:
    """Why dense convolutions miss a target, in the record's own numbers."""
    of, contenders = record["ratios"]["of"], record["contenders"]
    if target.quantity == "memory":
        native, other = contenders["native"], contenders[target.against]
        own = native["step_bytes"] / other["step_bytes"]
        base = (native["peak_bytes"] - native["step_bytes"]) / 1e6
        return (
            f"{base:.0f} MB of both peaks is Python, torch and the weights; of what the step adds, ours is {own:.2f}x"
        )
    convs = of.get("convs")
    if not convs:
        return "the convolutions were not measured beside it"
    share = convs["time"]
    if share >= 1:
        return "the convolutions, which both need, are all of our step within the noise"
    text = f"the convolutions, which both need, are {100 * share:.0f} % of our step"
    if target.against == "convs":
        return f"{100 * (1 - share):.0f} % of our step is tdBN, neurons, pooling, readout and the optimizer"
    reach = of[target.against]["time"] / share
    if target.quantity == "faster":
        return f"{text}: with nothing else it would be {reach:.2f}x"
    return f"{text}: with nothing else it would be {1 / reach:.2f}x"


def target_table(records: dict[str, dict[str, Any]]) -> list[str]:
    """Asked, measured with dense convolutions and with conv=auto, what holds the dense ones back."""
    lines = [
        "| work | against | asked | `conv=dense` | `conv=auto` | what holds `dense` back |",
        "|---|---|---|---|---|---|",
    ]
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
        why, dense = "", found["native"]
        if record is None or dense is None:
            why = f"no {target.record}.json" if record is None else "not in the record, or of another setting"
        elif not dense[1]:
            why = holds_back(target, record)
        lines.append(f"| {target.work} | {NAMES[target.against]} | {asked} | {' | '.join(texts)} | {why} |")
    grown = {name: rest for name, *rest in growth.ends(records.get("growth-train", {"points": []}))}
    if "native" in grown:
        low, high = grown["native"][:2]
        cells = []
        for name in OURS:
            if name not in grown:
                cells.append("not measured")
                continue
            time_ratio, memory_ratio = grown[name][2:]
            text = f"{time_ratio:.2f}x time, {memory_ratio:.2f}x memory of a step"
            cells.append(text if time_ratio <= 8 and memory_ratio <= 8 else f"**{text}**")
        lines.append(
            f"| training, T={high} against T={low} | itself | at most 8x time, 8x memory | {' | '.join(cells)} | |"
        )
    return lines


def comparison(name: str, record: dict[str, Any]) -> list[str]:
    """One record as a table."""
    of = record["ratios"]["of"]
    lines = [
        f"### {name}: {from_dict(record['setting']).title}; {record['rounds']} rounds",
        "",
        "| contender | time / native | peak / native | ms per image | spread | peak MB | of it the step | first step s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for who, c in plot.ordered(record):
        ratio = of[who]
        first = f"{ratio['time']:.2f} | {ratio['peak_memory']:.2f}" if ratio else "outputs differ |"
        lines.append(
            f"| {who}: {c['about']} | {first} | {c['ms_per_image']:.3f} | {c['spread'][0]:.3f} - {c['spread'][1]:.3f} "
            f"| {c['peak_bytes'] / 1e6:.0f} | {c['step_bytes'] / 1e6:.0f} | {c['first_step_s']:.1f} |"
        )
    lines += [f"\nLeft out: {who}, {why}." for who, why in record["left_out"].items()]
    return [*lines, ""]


def grown(record: dict[str, Any], figure: str) -> list[str]:
    """A sweep as a figure and a table."""
    s = record["setting"]
    what = "a training step" if s["work"] == "train" else "inference"
    lines = [
        f"### How {what} grows",
        "",
        f"{s['model']}, around width {s['width_mult']:g}, T={s['num_steps']}, batch {s['batch']} (16 where the width moves). Over T in training",
        "there are five rounds; the other points are quick looks, two short rounds each.",
        "",
        f"![time and memory over T, batch and width]({figure})",
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


def machine(records: dict[str, dict[str, Any]]) -> str:
    """What the numbers were measured on; every machine and commit that the records name, those with peers where there are some."""
    described: list[str] = []
    alone: list[str] = []
    for record in records.values():
        if "hardware" not in record:
            continue
        h, v = record["hardware"], record["versions"]
        peers = ", ".join(
            f"{n} {v[n]}" for n in ("spikingjelly", "snntorch") if v.get(n, "not installed") != "not installed"
        )
        commit = (record["code"]["commit"] or "unknown")[:9] + (", files changed" if record["code"]["changed"] else "")
        what = f"{h['cpu']}, {h['cores']} cores, {h['memory_gb']} GB, torch {v['torch']}"
        if peers:
            described.append(f"{what}, {peers}; commit {commit}")
        else:
            alone.append(f"{what}; commit {commit}")
    return "; ".join(dict.fromkeys(described or alone))


def loads(records: dict[str, dict[str, Any]]) -> str:
    """The load averages before the records, so that a reader can judge how quiet the machine was."""
    found = [r["load_before"] for r in records.values() if r.get("load_before") is not None]
    found += [
        p["load_before"] for r in records.values() for p in r.get("points", []) if p.get("load_before") is not None
    ]
    return f"{min(found):.1f} to {max(found):.1f}" if found else "unknown"


def answers(records: dict[str, dict[str, Any]], where: str) -> list[str]:
    """What `mpd-agl evaluate --json` said of one run: the plain path, the fast one, whole weights, early answers."""
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
        f"{model['name']} at width {model['width_mult']:g} on {record['config']['data']}, T={result['num_steps']}, {record['threads']} threads: "
        "a sample ends when the softmax of its mean logits reaches the threshold; what has ended is not computed.",
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


def write_page(folder: Path, out: Path) -> None:
    """Read the records, draw the figures beside them, write the page."""
    records = read(folder)
    order = list(SETTINGS)
    named = sorted(records, key=lambda n: (order.index(n) if n in order else len(order), n))
    comparisons = {n: records[n] for n in named if "ratios" in records[n]}
    sweeps = {n: r for n, r in records.items() if "points" in r}
    where = os.path.relpath(folder, out.parent)
    lines = [
        "# Performance",
        "",
        f"Measured on: {machine(records)}. Load average before each measurement, the last one's own included: {loads(records)}.",
        "",
        "Every contender runs in its own process and best setting; rounds alternate; a ratio is the median over rounds of times",
        "from the same round, its range in brackets. All load the same weights, and no ratio is given where their outputs differ",
        "(`mpd-agl bench --list` names the contenders, the records say how each was checked). Peers use a fixed surrogate width;",
        "ours follows the potentials. Networks are freshly initialised and fire as they do then. No contender gives freed memory back to",
        "the system between steps (`--fresh-pages` lets it). Peaks are of whole processes.",
        f"Made by `tools/measure_performance.sh`; records in [{where}]({where}).",
        "",
        "## Targets",
        "",
        "`conv=dense` takes torch's convolutions, as all contenders do; `conv=auto` computes each pass of each convolution in the",
        "fastest of three ways: dense, event-driven ([events.md](events.md)), in Winograd's form. Bold: not reached.",
        "",
        *target_table(records),
        "",
        "Where `auto` misses, the layers are narrow (16 to 64 channels): lists are short, Winograd's transforms weigh more, and what",
        "no way of convolution touches (tdBN, neurons, the framework's own time per layer) is a larger share of the step.",
        "",
        "## Comparisons",
        "",
    ]
    for name, record in comparisons.items():
        figure = folder / f"{name}.svg"
        write_atomic(figure, draw.svg_file(plot.bars(record)))
        lines += [*comparison(name, record), f"![{from_dict(record['setting']).title}]({where}/{figure.name})", ""]
    if sweeps:
        lines += ["## Growth", ""]
    for name, record in sweeps.items():
        figure = folder / f"{name}.svg"
        write_atomic(figure, draw.svg_file(plot.curves(record)))
        lines += grown(record, f"{where}/{figure.name}")
    lines += answers(records, where)
    write_atomic(out, ("\n".join(lines).rstrip() + "\n").encode())
