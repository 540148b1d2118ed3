"""What skipping zeros was worth: each layer's speed-up over its firing rate, as a run with `conv = auto` measured it."""

from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import Section, Table, share


def convs(run: Run) -> Section | None:
    """One dot per layer; None where the run measured nothing."""
    if not run.record.convs:
        return None
    last = run.record.convs[-1]
    layers = last["layers"]
    if not layers:
        return None
    figure, (axes,) = draw.new(height=3.0)
    for taken, colour in (("event", COLOURS[0]), ("dense", COLOURS[7])):
        dots = [c for c in layers.values() if c["taken"] == taken]
        if dots:
            x, y = [c["rate"] for c in dots], [c["dense_ms"] / c["event_ms"] for c in dots]
            axes.plot(x, y, "o", color=colour, markersize=4.5, label=f"{taken} taken")
    axes.axhline(1, color=draw.SOFT, linewidth=0.8)
    draw.percent(axes.xaxis)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("inputs that are not zero")
    axes.set_ylabel("dense time / event time")
    axes.set_title("Speed-up of skipping zeros, per layer")
    draw.legend(figure, axes, 2)
    skipping = [n for n, c in layers.items() if c["taken"] == "event"]
    dense, least = (
        sum(c["dense_ms"] for c in layers.values()),
        sum(min(c["dense_ms"], c["event_ms"]) for c in layers.values()),
    )
    best = max(layers, key=lambda n: layers[n]["dense_ms"] / layers[n]["event_ms"])
    gain = layers[best]["dense_ms"] / layers[best]["event_ms"]
    sentence = (
        f"At step {last['step'] + 1} {len(skipping)} of {len(layers)} layers were faster event-driven; the most in {best}, "
        f"{gain:.2f} times at {share(layers[best]['rate'])} active inputs. "
        f"Together they took {least:.1f} ms where all dense take {dense:.1f} ms."
    )
    rows = [
        [
            n,
            share(c["rate"]),
            f"{c['dense_ms']:.2f}",
            f"{c['event_ms']:.2f}",
            f"{c['dense_ms'] / c['event_ms']:.2f}",
            c["taken"],
        ]
        for n, c in layers.items()
    ]
    table = Table(("layer", "active inputs", "dense (ms)", "event (ms)", "speed-up", "taken"), rows, (1, 2, 3, 4))
    notes = ["One training batch: forward pass and weight gradient; the gradient of the input is dense in both."]
    panel = Panel(
        "convs", "Speed-up of the event-driven layer over the share of active inputs, a dot per layer", figure
    )
    return Section("convs", "Skipping zeros", sentence, [panel], table, notes)
