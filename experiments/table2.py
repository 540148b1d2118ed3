"""Table 2: operations and energy of one inference of the full-size ResNet-19 on CIFAR-10."""

import statistics
from collections.abc import Sequence

from experiments.quoted import TABLE2, TABLE2_ANN
from experiments.study import COMPARED, REFERENCE, Group, Study, Variant, label, per_method
from mpd_agl.diagnosis import Activity, EnergyReport, energy
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table


def variants(methods: Sequence[str]) -> list[Variant]:
    """Every method at T=2, MPD-AGL also at 4 and 6."""
    out = per_method("cifar10-resnet19", methods, {"T": "2"})
    for T in ("4", "6"):
        out += per_method("cifar10-resnet19", [m for m in methods if m == REFERENCE], {"T": T}, model__num_steps=int(T))
    return out


def full_size(run: Run) -> EnergyReport:
    """The full-size network's operations with the firing rates that the run's network was measured to have."""
    measured = run.record.energy
    if measured is None:
        raise InputError(f"run {run.path} has no energy record. Train it again under another --runs-dir.")
    net = create_model("resnet19", num_steps=run.num_steps)
    activity = {
        row["name"]: Activity(row["rate_in"], row["values_in"])
        for row in measured["layers"]
        if row["rate_in"] is not None
    }
    return energy(net, activity, rates_from=measured["rates_from"])


def show(groups: Sequence[Group]) -> PageSection:
    """The ANN, then a row per method and T; means over seeds."""
    rows: list[list[str]] = []
    ann: tuple[float, float] | None = None
    for g in groups:
        reports = [full_size(run) for run in g.runs.values()]
        T = g.first.num_steps
        ann = reports[0].ann_macs / 1e6, reports[0].ann_mj
        totals = [r.totals() for r in reports]
        additions = statistics.fmean(t["paper"]["additions"] for t in totals) / 1e6
        multiplies = totals[0]["paper"]["multiplies"] / 1e6
        mj = [statistics.fmean(t[name]["mj"] for t in totals) for name in ("paper", "paper, stem once", "strict")]
        rates = [layer.rate_in for r in reports for layer in r.rows[1:] if layer.rate_in is not None]
        quoted = TABLE2.get((g.method, T))
        rows.append(
            [
                label(g.method),
                str(T),
                f"{additions:.2f}",
                f"{multiplies:.2f}",
                *(f"{v:.3f}" for v in mj),
                f"{100 * mj[0] / ann[1]:.1f}",
                f"{100 * statistics.fmean(rates):.1f}",
                *_quoted(quoted),
            ]
        )
    assert ann is not None
    rows.insert(0, ["ANN", "", *2 * [f"{ann[0]:.2f}"], f"{ann[1]:.2f}", "", "", "100", "", *_quoted(TABLE2_ANN)])
    head = ("method", "T", "#Add., M", "#Multi., M", "mJ", "mJ, stem once", "mJ, strict", "% of ANN", "input rate, %")
    quoted_head = ("paper #Add. (quoted)", "paper #Multi. (quoted)", "paper mJ (quoted)")
    notes = [
        "Operations are the full-size network's; firing rates are those of the trained networks here, "
        "which are narrower except at the paper's scale. "
        "mJ: the paper's count. Stem once: a static image meets the first layer once, not T times. "
        "Strict: a layer whose input is not 0/1 counts as multiply-accumulates.",
    ]
    sentence = f"One inference of the ANN costs {ann[1]:.2f} mJ; the spiking network's cost follows its firing rates."
    table = Table((*head, *quoted_head), rows, tuple(range(1, 12)))
    return PageSection("table2", STUDY.title, sentence, [], table, notes)


def _quoted(values: tuple[float, float, float] | None) -> list[str]:
    return ["", "", ""] if values is None else [f"{v:.2f}" for v in values]


STUDY = Study(
    name="table2",
    title="Table 2: energy of one inference, ResNet-19, CIFAR-10",
    paper="MPD-AGL needs 0.55 mJ at T=2, the ANN 10.51 mJ.",
    variants=variants,
    show=show,
    methods=COMPARED,
)
