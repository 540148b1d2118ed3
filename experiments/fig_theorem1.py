"""Figure 6: true moments of the pre-synaptic input against Theorem 1's, during training on event data."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study import Group, Study, Variant, label, per_method
from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.layers import series, times
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table, mean


def variants(methods: Sequence[str]) -> list[Variant]:
    """VGGSNN at T=10."""
    return per_method("cifar10dvs-vggsnn", methods)


def curves(run: Run, layer: str) -> dict[str, list[float]]:
    """Measured moments, Theorem 1's, and the exact mixture's, over the snapshots (t = 1 of Theorem 2 is Theorem 1)."""
    return {
        "mean": series(run, layer, "input_mean"),
        "mean, Theorem 1": [m[0] for m in series(run, layer, "predicted_mean_T")],
        "variance": series(run, layer, "input_var"),
        "variance, Theorem 1": [v[0] for v in series(run, layer, "predicted_var_T")],
        "variance, exact mixture": [v[0] for v in series(run, layer, "exact_var_T")],
    }


def show(groups: Sequence[Group]) -> PageSection:
    """First, middle and last layer as curves; every layer at the end as a table; one run per method."""
    panels, rows, worst = [], [], (0.0, "", "")
    for g in groups:
        run = g.first
        names = run.layers
        chosen = [names[0], names[len(names) // 2], names[-1]]
        with draw.style():
            figure = Figure(figsize=(9.6, 5.0))
            axes = figure.subplots(2, len(chosen), squeeze=False)
            for column, name in enumerate(chosen):
                found = curves(run, name)
                _moment(axes[0][column], run, found, "mean", f"Mean, {draw.plain(name)}")
                _moment(axes[1][column], run, found, "variance", f"Variance, {draw.plain(name)}")
            handles, labels = axes[1][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3)
        key = "fig-theorem1" if len(groups) == 1 else f"fig-theorem1-{g.method}"
        panels.append(Panel(key, "Measured and estimated mean and variance of three layers over training", figure))
        for name in names:
            found = curves(run, name)
            low = found["variance, Theorem 1"][-1] / found["variance"][-1] - 1
            exact = found["variance, exact mixture"][-1] / found["variance"][-1] - 1
            off = max(abs(a - b) for a, b in zip(found["mean"], found["mean, Theorem 1"], strict=True))
            rows.append(
                [
                    label(g.method),
                    name,
                    f"{found['mean'][-1]:.4f}",
                    f"{found['mean, Theorem 1'][-1]:.4f}",
                    f"{off:.1e}",
                    f"{found['variance'][-1]:.4f}",
                    f"{found['variance, Theorem 1'][-1]:.4f}",
                    f"{100 * low:+.1f}",
                    f"{100 * exact:+.1f}",
                ]
            )
            worst = max(worst, (abs(low), name, label(g.method)))
    shortfall = mean([float(r[7]) for r in rows])
    sentence = (
        f"The mean is the theorem's to within {max(float(r[4]) for r in rows):.0e} all along, as tdBN makes it so; "
        "at the last snapshot "
        f"Theorem 1's variance differs from the measured one by {shortfall:+.1f} % on average over layers and by "
        f"{100 * worst[0]:.1f} % in {worst[1]}."
    )
    head = (
        "method",
        "layer",
        "mean",
        "Theorem 1",
        "largest gap",
        "variance",
        "Theorem 1",
        "gap, %",
        "exact mixture's gap, %",
    )
    notes = [
        "Measured on training batches, over all timesteps. "
        "The exact mixture adds the spread of gamma and of beta between channels."
    ]
    return PageSection("fig-theorem1", STUDY.title, sentence, panels, Table(head, rows, tuple(range(2, 9))), notes)


def _moment(axes: Axes, run: Run, found: dict[str, list[float]], kind: str, title: str) -> None:
    looks = {kind: (COLOURS[0], "-", 2.4), f"{kind}, Theorem 1": (COLOURS[1], "--", 1.6)}
    if kind == "variance":
        looks["variance, exact mixture"] = (COLOURS[2], ":", 1.8)
    names = {kind: "measured", f"{kind}, Theorem 1": "Theorem 1", "variance, exact mixture": "exact mixture"}
    for key, (tint, line, width) in looks.items():
        axes.plot(times(run), found[key], color=tint, linestyle=line, linewidth=width, label=names[key])
    draw.epochs(axes, times(run)[-1])
    axes.set_title(title)


STUDY = Study(
    name="fig-theorem1",
    title="Figure 6: Theorem 1 on event data, VGGSNN, T=10",
    paper="True mean and variance of the pre-synaptic input are close to the estimates during training (CIFAR10-DVS).",
    variants=variants,
    show=show,
    methods=("mpd-agl",),
    cpu={"train.epochs": 20, "monitor.every": 5},
)
