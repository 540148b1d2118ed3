"""Loss and accuracy of a run."""

from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, share


def scores(run: Run) -> PageSection:
    """Curves over the epochs."""
    x = [e["epoch"] for e in run.epochs]
    first, last = run.epochs[0], run.epochs[-1]
    lowest = min(run.epochs, key=lambda e: e["test_loss"])
    panels = []
    for key, title in (("loss", "Loss"), ("accuracy", "Accuracy")):
        figure, (axes,) = draw.new()
        for part, colour, name in (("train", COLOURS[0], "training"), ("test", COLOURS[1], "test")):
            draw.line(axes, x, [e[f"{part}_{key}"] for e in run.epochs], color=colour, label=name)
        if key == "accuracy":
            draw.percent(axes.yaxis)
            best = max(run.epochs, key=lambda e: (e["test_accuracy"], -e["epoch"]))
            axes.plot(
                best["epoch"],
                best["test_accuracy"],
                linestyle="none",
                marker="o",
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=COLOURS[1],
                label="best on the test set",
            )
        else:
            axes.set_ylabel("cross-entropy" if run.record.config.get("loss", {}).get("name") == "ce" else "loss")
        axes.set_title(title)
        draw.epochs(axes, x[-1], 1)
        draw.legend(figure, axes, 3)
        panels.append(Panel(key, f"{title} on training and test data over {len(x)} epochs", figure))
    lowest_words = f"after its lowest, {lowest['test_loss']:.3g}, at epoch {lowest['epoch']}"
    if lowest is last:
        lowest_words = "the lowest of the run"
    course = f"is {last['train_loss']:.3g}"
    if first is not last:
        course = f"went from {first['train_loss']:.3g} to {last['train_loss']:.3g}"
    sentence = (
        f"Training loss {course}; test loss is {last['test_loss']:.3g} at epoch {last['epoch']}, {lowest_words}, "
        f"with {share(last['test_accuracy'], 2)} of the test set right."
    )
    return PageSection("scores", "Loss and accuracy", sentence, panels)
