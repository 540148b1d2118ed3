"""Measures how large the weight gradients of ResNet-19's spiking layers are by each rule before the first step.

    python -m tools.gradient_sizes --data-dir DIR [--out docs/results] [--page docs/evidence.md]
    python -m tools.gradient_sizes --draw    # from the record that is there

Two starts of docs/evidence.md: random weights on CIFAR-10, and the trained network `cifar10` on CIFAR-100. All rules
see the same weights and batches; nothing is trained. Writes gradient-sizes.json, gradient-sizes.png, and its place in
the page.
"""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from experiments.descent_measure import Batch, with_rule
from experiments.evidence import OURS, PAPER
from experiments.scales import config_at
from matplotlib.figure import Figure
from tools.active_page import between
from tools.evidence_page import SIMD

from experiments import table3
from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock
from mpd_agl.ops import native
from mpd_agl.records import canonical, code, hardware, reading, versions, write_atomic
from mpd_agl.report import draw
from mpd_agl.train import build
from mpd_agl.train.config import RunConfig
from mpd_agl.train.losses import cross_entropy
from mpd_agl.train.start_from import start_from

OUT, PAGE = Path("docs/results"), Path("docs/evidence.md")
WHAT = "tools.gradient_sizes"
RULES = {OURS: "mpd-gain (ours)", PAPER: "MPD-AGL", "lsg": "LSG", "trainable-decay": "a width of 1"}
STARTS = {"random": ("CIFAR-10", ""), "trained": ("CIFAR-100", "cifar10")}
TITLES = {"random": "random weights, CIFAR-10", "trained": "trained weights, CIFAR-100"}
SEEDS, BATCHES = (0, 1, 2), 10
FIRST_STAGE = "stage1."


def norms(start: str, seed: int, data_dir: str) -> dict[str, dict[str, float]]:
    """By rule and layer the root mean square over batches of the norm of the weights' gradient."""
    data, weights = STARTS[start]
    found = next(v for v in table3.variants([PAPER]) if v.at["data"] == data)
    own = {"train.threads": 1, "data.data_dir": data_dir, "model.weights": weights}
    config = config_at(found, table3.STUDY, "cpu", seed, own)
    torch.manual_seed(seed)
    images = build.build_data(config, "train")
    net = build.network_for(config, images)
    start_from(config, net)
    return sizes(net, config, _batches(config, images))


def sizes(net: Network, config: RunConfig, batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """The same for a network and batches; the readout, which has no surrogate, is left out."""
    out = {}
    for rule in RULES:
        other = with_rule(net, config, rule, 1.0, batches[0][0])
        squares: dict[str, float] = {}
        for x, y in batches:
            other.zero_grad()
            cross_entropy(other(x), y).backward()
            for name, block in other.named_modules():
                if isinstance(block, SpikingBlock):
                    grad = block.synapse.weight.grad
                    assert grad is not None
                    squares[name] = squares.get(name, 0.0) + float(grad.norm()) ** 2 / len(batches)
        out[rule] = {name: square**0.5 for name, square in squares.items()}
    return out


def _batches(config: RunConfig, images: Any) -> list[Batch]:
    train, _ = build.build_loaders(config, images, images)
    taken = []
    with train.epoch(0) as every:
        for x, y, *_ in every:
            taken.append((x.clone(), y.clone()))
            if len(taken) == BATCHES:
                break
    return taken


def record_of(data_dir: str) -> dict[str, Any]:
    """Sizes over MPD-AGL's, by start and rule, a number per layer: the geometric mean over seeds."""
    relative: dict[str, dict[str, list[float]]] = {}
    for start in STARTS:
        seeds = [norms(start, seed, data_dir) for seed in SEEDS]
        layers = list(seeds[0][PAPER])
        relative[start] = {
            rule: [round(geometric_mean([s[rule][n] / s[PAPER][n] for s in seeds]), 3) for n in layers]
            for rule in RULES
        }
    return {
        "what": WHAT,
        "seeds": list(SEEDS),
        "batches": BATCHES,
        "layers": layers,
        "relative": relative,
        "code": code(),
        "hardware": {**hardware(), "simd": native.level()},
        "versions": versions(),
    }


def first_stage(record: dict[str, Any], rule: str) -> tuple[float, float]:
    """From trained weights, our rule's sizes over another's in the first stage: the smallest and the largest.

    >>> two = {"mpd-gain": [1.5, 1.2, 1.4], "lsg": [0.5, 0.6, 1.0]}
    >>> first_stage({"layers": ["stem", "stage1.a", "stage1.b"], "relative": {"trained": two}}, "lsg")
    (1.4, 2.0)
    """
    found = record["relative"]["trained"]
    rows = zip(record["layers"], found[OURS], found[rule], strict=True)
    ratios = [ours / other for name, ours, other in rows if name.startswith(FIRST_STAGE)]
    return min(ratios), max(ratios)


def picture(record: dict[str, Any]) -> bytes:
    """A panel per start: by layer the size of each rule's gradient over MPD-AGL's."""
    with draw.style():
        figure = Figure(figsize=(8.6, 3.7))
        panels = figure.subplots(1, len(STARTS), sharey=True)
        for axes, start in zip(panels, STARTS, strict=True):
            names = record["layers"]
            for shown, (rule, told) in zip(draw.COLOURS, RULES.items(), strict=False):
                axes.plot(range(len(names)), record["relative"][start][rule], ".-", color=shown, label=told)
            axes.set_yscale("log")
            ticks = (0.4, 0.6, 1, 1.5)
            axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
            axes.minorticks_off()
            axes.set_xticks(
                range(len(names)), [draw.plain(n) for n in names], rotation=60, ha="right", fontsize="xx-small"
            )
            axes.set_title(TITLES[start])
        panels[0].set_ylabel("gradient over MPD-AGL's")
        draw.legend(figure, panels[0], 4)
        return draw.png_file(figure)


def lines(record: dict[str, Any], picture_link: str, record_link: str) -> list[str]:
    """The page's place: the ranges, the picture, the command."""
    pairs = {told: first_stage(record, rule) for rule, told in RULES.items() if rule != OURS}
    told = ", ".join(f"{low:.1f} to {high:.1f} times those by {name}" for name, (low, high) in pairs.items())
    random = record["relative"]["random"][OURS]
    text = (
        f"Weight gradients of ResNet-19's spiking layers before the first step, all rules on the same weights and "
        f"{record['batches']} batches, {len(record['seeds'])} seeds. From random weights on CIFAR-10 our rule's are "
        f"{min(random):.2f} to {max(random):.2f} times MPD-AGL's, by layer. From trained weights on CIFAR-100 "
        f"those of the first stage are {told}. {record['hardware']['cpu']} with {SIMD[record['hardware']['simd']]}. "
        f"[Record]({record_link})."
    )
    return [
        *textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False),
        "",
        f"![Size of each layer's gradient over MPD-AGL's, from random and from trained weights]({picture_link})",
        "",
        "```bash",
        "python -m tools.gradient_sizes --data-dir DIR",
        "```",
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure, write record, picture and place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        with reading(args.page):
            page = args.page.read_text(encoding="utf-8")
        files = [args.out / f"gradient-sizes.{kind}" for kind in ("png", "json")]
        links = [os.path.relpath(file, args.page.parent) for file in files]
        between(
            page, "gradient-sizes", [], args.page
        )  # a page without the place is refused before anything is measured
        with reading(files[1]):
            record = json.loads(files[1].read_text(encoding="utf-8")) if args.draw else record_of(args.data_dir)
        text = between(page, "gradient-sizes", lines(record, *links), args.page)
        write_atomic(files[0], picture(record))
        write_atomic(files[1], canonical(record))
        write_atomic(args.page, text.encode())
    except InputError as error:
        print(f"gradient_sizes: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gradient_sizes: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    print(f"{files[1]}: {len(record['layers'])} layers, {len(RULES)} rules, {len(STARTS)} starts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
