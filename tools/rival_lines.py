"""Lines of src that each rival costs, counted from the source: `python tools/rival_lines.py` prints the table.

Counted are the definitions that stand for one rival, docstrings included; mechanisms that several share (relative
widths, objectives, attacks, the shape of a run) are rows of their own.
"""

import ast
from pathlib import Path

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


def main() -> None:
    """Print the table."""
    counts = {name: sum(map(lines, places)) for name, places in RIVALS.items()}
    shared = {name: sum(map(lines, places)) for name, places in SHARED.items()}
    print("| rival | lines |\n|---|---:|")
    for name, count in (counts | shared).items():
        print(f"| {name} | {count} |")
    total = sum(counts.values()) + sum(shared.values())
    print(f"| mean of {len(counts)} rivals, what they share included | {total / len(counts):.0f} |")


if __name__ == "__main__":
    main()
