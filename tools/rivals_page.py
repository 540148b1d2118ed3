"""Writes the tables of docs/rivals.md: accuracy on the demo and cost of a step from records, lines from the source.

    python -m tools.rivals_page [--records docs/results/rivals] [-o docs/rivals.md]

`rivals.json` comes from `mpd-agl reproduce rivals`, `table1.json` from `mpd-agl reproduce table1`, `methods.json` from
`mpd-agl bench methods`. A record that is not there leaves its table as it is. Lines are those of the definitions that
stand for one rival, docstrings included; what several share is a row of its own.
"""

import argparse
import ast
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tools.active_page import between

from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic

PAGE, RECORDS = Path("docs/rivals.md"), Path("docs/results/rivals")
SRC = Path(__file__).parents[1] / "src" / "mpd_agl"
RIVALS = {
    "ds-atgo, ds-atgo-sigma": (
        "core/atgo.py:*",
        "core/mpd.py:atgo_width",
        "nn/width.py:AtgoWidth",
        "nn/rivals.py:AtgoNeuron",
    ),
    "trsg": ("nn/rivals.py:TrSGNeuron",),
    "mp-init": ("nn/neuron.py:Neuron.beginning", "nn/neuron.py:Neuron.learn_start"),
    "mpr": ("nn/rivals.py:mpr_neuron", "core/surrogate.py:MPR"),
    "diet": ("nn/rivals.py:diet_neuron",),
    "slope-schedule": ("core/surrogate.py:FastSigmoid", "nn/width.py:ScheduledWidth", "nn/width.py:set_progress"),
    "s2nn": ("core/surrogate.py:S2NN", "nn/width.py:SingleStepWidth"),
    "tebn": ("nn/step_norm.py:TEBN",),
    "tab": ("nn/step_norm.py:TAB", "nn/step_norm.py:prefix_moments"),
    "mpbn": ("nn/mpbn.py:*",),
    "tcja": ("nn/attention.py:tcja", "nn/attention.py:TCJA"),
    "statten": ("nn/attention.py:spike_attention", "nn/attention.py:SpikeAttention", "models/statten.py:*"),
    "ms-resnet18, 34": ("models/ms_resnet.py:*",),
    "sew-resnet18, 34": (
        *("models/resnet.py:sew_resnet", "models/resnet.py:sew_resnet18", "models/resnet.py:sew_resnet34"),
    ),
    "ltl": ("train/objectives.py:LocalTandem",),
    "distill": ("train/objectives.py:Distill",),
    "shortcut-heads": ("train/objectives.py:ShortcutHeads", "runs/objectives.py:stage_ends"),
    "robust, fgsm, pgd": ("train/objectives.py:Robust", "train/attacks.py:*"),
}
SHARED = {
    "relative widths (trsg, diet)": ("nn/width.py:RelativeWidth",),
    "norms by step (tebn, tab)": ("nn/step_norm.py:make_norm", "nn/step_norm.py:by_step", "nn/step_norm.py:StepAffine"),
    "trainings (ltl, distill, shortcut-heads, robust)": (
        *("train/objectives.py:Objective", "train/objectives.py:tapped"),
        *("runs/objectives.py:build_objective", "runs/objectives.py:read_teacher", "runs/objectives.py:start_from"),
    ),
}


def lines(place: str) -> int:
    """Lines of a definition FILE:NAME or FILE:CLASS.NAME, or of a whole file, FILE:*."""
    file, _, name = place.partition(":")
    text = (SRC / file).read_text(encoding="utf-8")
    if name == "*":
        return len(text.splitlines())
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == part)
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    assert node.end_lineno is not None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.end_lineno - first + 1


def line_table() -> list[str]:
    """What each rival costs in lines of src."""
    counts = {name: sum(map(lines, places)) for name, places in RIVALS.items()}
    shared = {name: sum(map(lines, places)) for name, places in SHARED.items()}
    mean = (sum(counts.values()) + sum(shared.values())) / len(counts)
    told = {**counts, **shared, f"mean of {len(counts)} rivals, what they share included": round(mean)}
    return ["| rival | lines |", "|---|---:|", *(f"| {name} | {count} |" for name, count in told.items())]


def demo_table(record: dict[str, Any]) -> list[str]:
    """Accuracy, spread and paired difference, and what the runs were made with."""
    head, rows = record["table"]["head"], record["table"]["rows"]
    rule = "|" + "|".join("---:" if name in ("seeds", *head[3:6]) else "---" for name in head) + "|"
    table = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    made = ", ".join(sorted({f"{h['cpu']}, {h['threads']} thread" for h in record["hardware"]}))
    commits = ", ".join(sorted({str(code["commit"])[:9] for code in record["code"]}))
    holes = [note for note in record["notes"] if note.startswith(("Not complete", "Ended in NaN"))]
    words = " ".join(
        [record["sentence"], *holes, f"{made}; commits {commits}.", "[Record](results/rivals/rivals.json)."]
    )
    return [*textwrap.wrap(words, 120, break_on_hyphens=False), "", table[0], rule, *table[1:]]


def table1_table(record: dict[str, Any]) -> list[str]:
    """The rows of Table 1 that were trained here, without those that are quoted."""
    head, rows = record["table"]["head"], record["table"]["rows"]
    kept = [head.index(name) for name in ("method", "network", "T", "accuracy, last epoch", "best on test")]
    here = [[row[k] for k in kept] for row in rows if row[head.index("source")] == "here"]
    table = [f"| {' | '.join(row)} |" for row in ([head[k] for k in kept], *here)]
    made = ", ".join(sorted({f"{c['hardware']['cpu']}, {c['hardware']['threads']} thread" for c in record["cells"]}))
    commits = ", ".join(sorted({str(c["code"]["commit"])[:9] for c in record["cells"]}))
    told = [note for note in record["notes"] if note.startswith(("Not complete", "Ended in NaN", "Departs", "Data:"))]
    words = " ".join([*told, f"{made}; commits {commits}.", "[Record](results/rivals/table1.json)."])
    rule = "|---|---|---:|---:|---:|"
    return [*textwrap.wrap(words, 120, break_on_hyphens=False), "", table[0], rule, *table[1:]]


def cost_table(record: dict[str, Any]) -> list[str]:
    """Time and memory of a training step over mpd-agl's."""
    s, h = record["setting"], record["hardware"]
    words = (
        f"A training step over mpd-agl's: {s['model']}, width_mult {s['width_mult']:g}, T = {s['num_steps']}, batch "
        f"{s['batch']}, {s['threads']} threads, {h['cpu']}, torch {record['versions']['torch']}, {record['rounds']} "
        f"rounds, a fixed loop between them at most {max(record['slowdown']):.2f} times its best. "
        "[Record](results/rivals/methods.json)."
    )
    rows = [
        f"| `{name}` | {r['num_steps']} | {r['time']:.2f} ({r['range'][0]:.2f} to {r['range'][1]:.2f}) | "
        f"{r['peak_memory']:.2f} | {r['ms_per_image']:.2f} |"
        for name, r in record["rows"].items()
    ]
    rows += [f"| `{name}` | | left out: {why} | | |" for name, why in record["left_out"].items()]
    head = ["| row | T | time | peak memory | ms per image |", "|---|---:|---:|---:|---:|"]
    return [*textwrap.wrap(words, 120, break_on_hyphens=False), "", *head, *rows]


def main(argv: list[str] | None = None) -> int:
    """Fill the page."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--records", type=Path, default=RECORDS)
    p.add_argument("-o", "--out", type=Path, default=PAGE)
    a = p.parse_args(argv)
    try:
        made = {"lines": line_table()}
        sources = {
            "demo": ("rivals.json", demo_table),
            "table1": ("table1.json", table1_table),
            "cost": ("methods.json", cost_table),
        }
        for name, (file, table) in sources.items():
            if (path := a.records / file).is_file():
                with reading(path):
                    made[name] = table(json.loads(path.read_text(encoding="utf-8")))
        text = a.out.read_text(encoding="utf-8")
        for name, part in made.items():
            text = between(text, name, part, a.out)
        write_atomic(a.out, text.encode())
    except (InputError, OSError) as error:
        print(f"rivals_page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
