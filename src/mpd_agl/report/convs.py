"""What `conv_impl = auto` took and why: each layer's predicted speed-up over its share of active inputs."""

from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table, share


def convs(run: Run) -> PageSection | None:
    """One dot per layer; None where the run chose nothing."""
    if not run.record.convs:
        return None
    last = run.record.convs[-1]
    layers = last["layers"]
    if any("ms" not in choice for choice in layers.values()):
        raise InputError(
            f"run {run.record.name} measured its convolutions with an earlier version of mpd-agl, "
            "which kept no times of passes. Make its report with that version, or train it again."
        )
    if not layers or not all(map(_taken, layers.values())):  # without the machine's costs every layer is dense
        return None
    rows = [_row(n, c) for n, c in layers.items()]
    figure, (axes,) = draw.new(height=3.0)
    for way, colour in (("event", COLOURS[0]), ("lookup", COLOURS[1]), ("winograd", COLOURS[2]), ("dense", COLOURS[7])):
        dots = [c for c in layers.values() if c["taken"]["forward"] == way]
        if dots:
            x, y = [c["rate"] for c in dots], [_dense(c) / _taken(c) for c in dots]
            axes.plot(x, y, "o", color=colour, markersize=4.5, label=f"forward {way}")
    axes.axhline(1, color=draw.SOFT, linewidth=0.8)
    draw.percent(axes.xaxis)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("inputs that are not zero")
    axes.set_ylabel("dense time / time taken")
    axes.set_title("Speed-up of each layer")
    draw.legend(figure, axes, 3)
    skipping = [n for n, c in layers.items() if "event" in c["taken"].values()]
    summing = [n for n, c in layers.items() if "lookup" in c["taken"].values()]
    best = max(layers, key=lambda n: _dense(layers[n]) / _taken(layers[n]))
    gain = _dense(layers[best]) / _taken(layers[best])
    sentence = (
        f"At step {last['step']}, {len(skipping)} of {len(layers)} layers skipped zeros and {len(summing)} looked "
        f"sums up in a pass; the most was gained in {best}, {gain:.2f} times at {share(layers[best]['rate'])} active "
        f"inputs. Together they took {sum(map(_taken, layers.values())):.1f} ms where all dense take "
        f"{sum(map(_dense, layers.values())):.1f} ms."
    )
    heads = (
        "layer",
        "active inputs",
        "dense (ms)",
        "taken (ms)",
        "speed-up",
        "forward",
        "weight gradient",
        "input gradient",
    )
    table = Table(heads, rows, (1, 2, 3, 4))
    notes = [
        "One training batch: forward pass and both gradients, each in the way that the machine's costs predict to be "
        "the quickest for these sizes and this share of active inputs. docs/active.md explains the ways."
    ]
    panel = Panel(
        "convs", "Speed-up of a layer over its dense self, over the share of active inputs, a dot per layer", figure
    )
    return PageSection("convs", "Faster convolutions", sentence, [panel], table, notes)


def _dense(choice: dict[str, Any]) -> float:
    """Milliseconds of all passes if all were dense."""
    return float(sum(found["dense"] for found in choice["ms"].values()))


def _taken(choice: dict[str, Any]) -> float:
    """Milliseconds of all passes in the ways that were taken."""
    lists = choice["lists_ms"] if "event" in choice["taken"].values() else 0.0
    bits = choice.get("bits_ms", 0.0) if "lookup" in choice["taken"].values() else 0.0
    return float(sum(found[choice["taken"][name]] for name, found in choice["ms"].items()) + lists + bits)


def _row(name: str, choice: dict[str, Any]) -> list[str]:
    dense, taken, ways = _dense(choice), _taken(choice), choice["taken"]
    times = [f"{dense:.2f}", f"{taken:.2f}", f"{dense / taken:.2f}"]
    return [name, share(choice["rate"]), *times, *(ways.get(p, "") for p in ("forward", "weight_grad", "input_grad"))]
