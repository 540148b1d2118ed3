"""Energy per layer of the trained network, next to the ANN of the same architecture."""

import numpy as np

from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table, share


def joule(mj: float) -> str:
    """An energy, given in millijoule.

    >>> [joule(mj).split() for mj in (0.55, 0.00453)]
    [['0.55', 'mJ'], ['4.53', 'µJ']]
    """
    return f"{mj:.3g}\N{NO-BREAK SPACE}mJ" if mj >= 0.1 else f"{1000 * mj:.3g}\N{NO-BREAK SPACE}µJ"


def energies(run: Run) -> PageSection | None:
    """Bars per layer and totals by both conventions; None where the record has none (an ANN, an unfinished run)."""
    report = run.record.energy
    if report is None:
        return None
    layers, pj = report["layers"], report["pj"]
    snn = [(r["additions"] * pj["addition"] + r["multiplies"] * pj["multiply"]) * 1e-6 for r in layers]
    ann = [r["macs"] * pj["multiply"] * 1e-6 for r in layers]
    figure, (axes,) = draw.new(height=max(2.6, 0.27 * len(layers) + 1.1))
    y = np.arange(len(layers))
    axes.barh(y - 0.2, ann, height=0.4, color=COLOURS[7], label="ANN")
    axes.barh(y + 0.2, snn, height=0.4, color=COLOURS[0], label=f"SNN, T = {report['num_steps']}")
    draw.layer_rows(axes, [r["name"] for r in layers])
    axes.set_xlabel("energy of one inference, µJ")
    axes.set_title("Energy per layer")
    draw.legend(figure, axes, 2)
    totals, ann_mj = report["totals"], report["ann"]["mj"]
    macs = f"{report['ann']['macs'] / 1e6:.2f}"
    rows = [["ANN, same architecture", macs, macs, f"{ann_mj:.4g}", "100 %"]]
    rows += [
        [
            f"SNN, {name}",
            f"{t['additions'] / 1e6:.2f}",
            f"{t['multiplies'] / 1e6:.2f}",
            f"{t['mj']:.4g}",
            share(t["mj"] / ann_mj),
        ]
        for name, t in totals.items()
    ]
    paper, strict = totals["paper"]["mj"], totals["strict"]["mj"]
    dearest = layers[int(np.argmax(snn))]["name"]
    sentence = (
        f"Counted as the paper counts, one inference takes {joule(paper)}, {share(paper / ann_mj)} of the ANN's "
        f"{joule(ann_mj)}, and {share(strict / ann_mj)} where inputs that are not 0 or 1 count as multiplications; "
        f"most of it goes to {dearest}."
    )
    notes = [
        f"Firing rates: {report['rates_from']}. {pj['addition']} pJ per addition, {pj['multiply']} pJ per "
        "multiply-accumulate (45 nm); an estimate from counted operations, not a measurement of a chip."
    ]
    head = ("count", "additions (M)", "multiplications (M)", "energy (mJ)", "of the ANN")
    table = Table(head, rows, numbers=(1, 2, 3, 4))
    return PageSection(
        "energy", "Energy", sentence, [Panel("energy", "Energy per layer, SNN and ANN", figure)], table, notes
    )
