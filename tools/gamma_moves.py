"""Draws how far training moves each layer's mean gamma, which is all that Eq. 7's width adds to LSG's.

    python -m tools.gamma_moves [--out docs/results] [--page docs/evidence.md]

Compares the runs of MPD-AGL in docs/results/evidence/table3.json, read from the kept runs, with the trained network
`cifar10` in the box. Both are ResNet-19 with 1/8 of the channels on CIFAR-10. Writes gamma-moves.json, gamma-moves.png,
and its place in the page.
"""

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tools.active_page import between
from tools.evidence_page import PAGE, RECORDS
from tools.kept_runs import FILE, read_kept

from mpd_agl.errors import InputError
from mpd_agl.models import create_model, pretrained_card
from mpd_agl.nn import SpikingBlock
from mpd_agl.records import canonical, reading, write_atomic
from mpd_agl.report import draw

OUT = Path("docs/results")
WHAT = "tools.gamma_moves"
METHOD, NAME = "mpd-agl", "cifar10"


def of_run(run: dict[str, Any]) -> dict[str, float]:
    """Per layer the mean gamma at the end of a kept run of MPD-AGL, from its width: kappa_1 = 2 gamma_bar v_th, Eq. 7.

    >>> of_run({"lines": [{"log": "monitor", "layers": {"stem": {"v_th": 0.5, "kappa_T": [1.1, 1.12]}}}]})
    {'stem': 1.1}
    """
    last = [line for line in run["lines"] if line["log"] == "monitor"][-1]
    return {name: layer["kappa_T"][0] / (2 * layer["v_th"]) for name, layer in last["layers"].items()}


def of_network(name: str) -> dict[str, float]:
    """Per layer the mean gamma of a trained network in the box."""
    net = create_model(pretrained_card(name).model, pretrained=name)
    blocks = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
    return {n: float(block.norm.weight.detach().mean()) for n, block in blocks.items()}


def record_of(table: dict[str, Any], kept: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Mean gammas by layer, of each run and of the trained network, and their ranges."""
    names = {str(c["seed"]): c["run"] for c in table["cells"] if (c["method"], c["at"]["data"]) == (METHOD, "CIFAR-10")}
    if lost := [name for name in names.values() if name not in kept]:
        raise InputError(f"{FILE} does not hold the run {lost[0]}. Add it with `python -m tools.kept_runs keep`.")
    if not names:
        raise InputError(f"no run of {METHOD} on CIFAR-10 stands in the record. Name another with --records.")
    runs = {seed: _rounded(of_run(kept[name])) for seed, name in names.items()}
    network = _rounded(of_network(NAME))
    every = [value for run in runs.values() for value in run.values()]
    return {
        "what": WHAT,
        "runs": names,
        "network": NAME,
        "network_sha256": pretrained_card(NAME).weights["sha256"],
        "range": {"runs": [min(every), max(every)], "network": [min(network.values()), max(network.values())]},
        "gamma_bar": {"runs": runs, "network": network},
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def picture(record: dict[str, Any]) -> bytes:
    """A column per layer: a dot for each run, a larger one for the trained network."""
    found = record["gamma_bar"]
    layers = list(found["network"])
    with draw.style():
        figure = Figure(figsize=(7.6, 3.5))
        axes = figure.subplots()
        axes.axhline(1, color=draw.SOFT, linewidth=0.8)
        for k, run in enumerate(found["runs"].values()):
            told = f"MPD-AGL, 10,000 images, 8 epochs ({len(found['runs'])} seeds)" if k == 0 else "_seed"
            axes.plot(layers, [run[n] for n in layers], ".", color=draw.COLOURS[0], markersize=5, label=told)
        told = "trained network in the box"
        axes.plot(layers, [found["network"][n] for n in layers], "o", color=draw.COLOURS[1], markersize=6, label=told)
        axes.set_yscale("log")
        ticks = (0.3, 0.5, 1, 2)
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_xticks(
            range(len(layers)), [draw.plain(n) for n in layers], rotation=60, ha="right", fontsize="x-small"
        )
        axes.set_ylabel("mean gamma")
        draw.legend(figure, axes, 2)
        return draw.png_file(figure)


def lines(record: dict[str, Any], picture_link: str, record_link: str) -> list[str]:
    """The page's place: the ranges, the picture."""
    runs, network = record["range"]["runs"], record["range"]["network"]
    text = (
        f"ResNet-19 with 1/8 of the channels on CIFAR-10. After 8 epochs of 10,000 images by MPD-AGL the mean gamma of "
        f"every layer lies between {runs[0]:.2f} and {runs[1]:.2f} ({len(record['runs'])} seeds). In the trained "
        f"network in the box it lies between {network[0]:.2f} and {network[1]:.2f}. [Record]({record_link})."
    )
    return [
        *textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False),
        "",
        f"![Mean gamma of each layer: near 1 after 8 epochs, far from it in the trained network]({picture_link})",
        "",
        "```bash",
        "python -m tools.gamma_moves",
        "```",
    ]


def main(argv: list[str] | None = None) -> int:
    """Write record, picture and place, say the ranges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS / "table3.json")
    parser.add_argument("--kept", type=Path, default=FILE)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    try:
        with reading(args.records):
            record = record_of(json.loads(args.records.read_text(encoding="utf-8")), read_kept(args.kept))
        files = [args.out / f"gamma-moves.{kind}" for kind in ("png", "json")]
        made = lines(record, *(os.path.relpath(file, args.page.parent) for file in files))
        text = between(args.page.read_text(encoding="utf-8"), "gamma-moves", made, args.page)
        write_atomic(files[0], picture(record))
        write_atomic(files[1], canonical(record))
        write_atomic(args.page, text.encode())
    except InputError as error:
        print(f"gamma_moves: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gamma_moves: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    for what, (low, high) in record["range"].items():
        print(f"{what}: mean gamma of a layer from {low:.2f} to {high:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
