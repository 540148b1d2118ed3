"""Several runs side by side: curves overlaid, the results as a table, and in what their configurations differ."""

import statistics
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpd_agl.options import flatten
from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.layers import times
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table, mean, share

STYLES = ("-", "--", ":", "-.")
WITHOUT_EFFECT = ("data.data_dir", "data.download", "train.workers", "train.test_batch_size", "checkpoint.", "track.")
"""Fields of the configuration that no result depends on."""


def labels(runs: Sequence[Run]) -> list[str]:
    """Numbered, so that two runs of one name are distinguishable."""
    return [f"{i}: {run.name}" for i, run in enumerate(runs, 1)]


def comparison(runs: Sequence[Run]) -> PageSection:
    """The part of the page that only several runs have."""
    panels = [
        _over_epochs(runs, "compare-accuracy", "Test accuracy", lambda e: e["test_accuracy"], in_percent=True),
        _over_epochs(runs, "compare-loss", "Training loss", lambda e: e["train_loss"], in_percent=False),
    ]
    watched = [(i, run) for i, run in enumerate(runs) if run.shows("kappa_T", "available_T", "rate_T")]
    if watched:
        panels += [
            _over_snapshots(runs, watched, "available_T", "Gradient-available share, mean over layers"),
            _over_snapshots(runs, watched, "rate_T", "Firing rate, mean over layers"),
        ]
    if watched and len({tuple(run.layers) for _, run in watched}) == 1:
        panels += [
            _over_layers(runs, watched, "kappa_T", "Width κ per layer, last timestep, at the end", last_step=True),
            _over_layers(runs, watched, "available_T", "Gradient-available share per layer, at the end"),
        ]
    ranked = sorted(zip(labels(runs), runs, strict=True), key=lambda pair: -pair[1].last["test_accuracy"])
    (top, first), (bottom, other) = ranked[0], ranked[-1]
    gap = 100 * (first.last["test_accuracy"] - other.last["test_accuracy"])
    samples = first.record.data["test"]["samples"]
    highest = share(first.last["test_accuracy"], 2)
    lead = f"Run {top} ends highest, with {highest} test accuracy, {gap:.2f} points above run {bottom}"
    if gap == 0:
        lead = f"All runs end at the same test accuracy, {highest}"
    sentence = (
        f"{lead}; one test sample of {samples} is {100 / samples:.2g} points, "
        "and single runs also differ by their seed."
    )
    notes = []
    if any(not run.finished for run in runs):
        unfinished = [label for label, run in zip(labels(runs), runs, strict=True) if not run.finished]
        notes.append(f"Not finished: {', '.join(unfinished)}. Their numbers are of the last epoch that is done.")
    return PageSection("comparison", "Comparison", sentence, panels, results(runs), notes)


def _look(i: int) -> dict[str, str]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // len(COLOURS) % len(STYLES)]}


def _finish(key: str, title: str, figure: Figure, axes: Axes) -> Panel:
    axes.set_title(title)
    draw.legend(figure, axes, 2)
    return Panel(key, f"{title}, one curve per run", figure)


def _height(runs: Sequence[Run]) -> float:
    return 2.55 + 0.17 * ((len(runs) + 1) // 2)


def _over_epochs(
    runs: Sequence[Run], key: str, title: str, value: Callable[[dict[str, float]], float], *, in_percent: bool
) -> Panel:
    figure, (axes,) = draw.new(height=_height(runs))
    for i, (label, run) in enumerate(zip(labels(runs), runs, strict=True)):
        draw.line(
            axes, [e["epoch"] for e in run.epochs], [value(e) for e in run.epochs], label=draw.plain(label), **_look(i)
        )
    draw.epochs(axes, max(run.epochs[-1]["epoch"] for run in runs), 1)
    if in_percent:
        draw.percent(axes.yaxis)
    return _finish(key, title, figure, axes)


def _over_snapshots(runs: Sequence[Run], watched: Sequence[tuple[int, Run]], key: str, title: str) -> Panel:
    figure, (axes,) = draw.new(height=_height(runs))
    for i, run in watched:
        y = [mean([mean(layer[key]) for layer in s["layers"].values()]) for s in run.snapshots]
        draw.line(axes, times(run), y, label=draw.plain(labels(runs)[i]), **_look(i))
    draw.epochs(axes, max(1e-9, *(times(run)[-1] for _, run in watched)))
    draw.percent(axes.yaxis)
    return _finish(f"compare-{key.removesuffix('_T')}", title, figure, axes)


def _over_layers(
    runs: Sequence[Run], watched: Sequence[tuple[int, Run]], key: str, title: str, *, last_step: bool = False
) -> Panel:
    names = watched[0][1].layers
    figure, (axes,) = draw.new(height=_height(runs) + 0.3)
    for i, run in watched:
        last = run.snapshots[-1]["layers"]
        y = [last[n][key][-1] if last_step else mean(last[n][key]) for n in names]
        draw.line(axes, range(len(names)), y, label=draw.plain(labels(runs)[i]), marker="o", markersize=3, **_look(i))
    axes.set_xticks(
        range(len(names)),
        draw.layer_names(names),
        rotation=40 if len(names) <= 10 else 90,
        ha="right" if len(names) <= 10 else "center",
        fontsize=7.5,
    )
    if not last_step:
        draw.percent(axes.yaxis)
    return _finish(f"compare-{key.removesuffix('_T')}-layers", title, figure, axes)


def results(runs: Sequence[Run]) -> Table:
    """One row per run."""
    rows = []
    for label, run in zip(labels(runs), runs, strict=True):
        last = run.snapshots[-1]["layers"].values() if run.shows("rate_T", "available_T") else []
        energy = run.record.energy
        rows.append(
            [
                label,
                run.method,
                str(run.num_steps) if run.method != "ann" else "",
                str(run.record.config.get("seed", "")),
                f"{run.last['epoch']} of {run.planned_epochs}",
                share(run.last["test_accuracy"], 2),
                f"{share(run.best['test_accuracy'], 2)} (epoch {run.best['epoch']})",
                share(mean([mean(s["rate_T"]) for s in last])) if last else "",
                share(mean([mean(s["available_T"]) for s in last])) if last else "",
                f"{energy['totals']['paper']['mj']:.3g}" if energy else "",
                f"{run.record.data['train']['samples']:,}",
            ]
        )
    head = ("run", "method", "T", "seed", "epochs", "test accuracy, last epoch", "best on the test set")
    more = ("firing", "available", "energy, mJ (paper)", "training samples")
    return Table((*head, *more), rows, numbers=(2, 3, 5, 6, 7, 8, 9, 10))


def per_setting(runs: Sequence[Run]) -> Table | None:
    """Mean and spread over runs that differ by their seed only; None where there are no two."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished:
            config = {k: v for k, v in counted(run).items() if k not in ("seed", "monitor.every")}
            groups.setdefault(repr(sorted(config.items())), []).append(run)
    rows = []
    for same in groups.values():
        if len(same) > 1:
            scores = [run.last["test_accuracy"] for run in same]
            each = ", ".join(f"{100 * s:.2f}" for s in scores)
            spread = f"{100 * statistics.stdev(scores):.2f}"
            rows.append([same[0].method, str(same[0].num_steps), str(len(same)), share(mean(scores), 2), spread, each])
    head = ("method", "T", "seeds", "mean test accuracy", "standard deviation", "each")
    return Table(head, rows, numbers=(1, 2, 3, 4)) if rows else None


def counted(run: Run) -> dict[str, object]:
    """The configuration's fields that a result may depend on."""
    return {k: v for k, v in flatten(run.record.config).items() if not k.startswith(WITHOUT_EFFECT)}


def differences(runs: Sequence[Run]) -> Table | None:
    """Fields of the configuration that are not the same in all runs."""
    configs = [counted(run) for run in runs]
    names = sorted({name for c in configs for name in c})
    differ = [n for n in names if len({repr(c.get(n)) for c in configs}) > 1]
    if not differ:
        return None
    return Table(("field", *labels(runs)), [[n, *(str(c.get(n, "")) for c in configs)] for n in differ])
