"""The checks of spiking layers: the figure that shows each problem, its limit, why it matters and what fixes it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SILENT = 0.001
"""Firing rate. Under one spike in a thousand steps the layers behind cannot distinguish inputs."""
SATURATED = 0.9
"""Firing rate. Neurons that fire at nine of ten steps send nearly the same whatever they see."""
FAR = 1.645
"""Standard deviations from the mean potential up to the threshold. 5 % of a normal lie above; networks beyond it
trained to 28 to 68 % where the same ones, scaled to about 1.1, reached 95 % (SpikingJelly's defaults, 6 and 10 layers,
digits)."""
EMPTY_WINDOW = 0.05
"""Share of neurons within the width. The monitors of a run warn under the same share; the paper's setting starts at 48
%."""
FULL_WINDOW = 0.99
"""Share of neurons within the width. Where it holds all, the gradient does not distinguish near from far."""
VANISHED = 0.01
"""Gradient norm of the first layer over the last's. With a hundredth of it the first layers learn a hundred times more
slowly; ten-layer networks that trained to 95 % had 0.07 to 1.5."""
EXPLODED = 100.0
"""Gradient norm of the first layer over the last's: a learning rate that suits the last layers is far too large for
the first ones."""
DEAD = 0.4
"""Share of channels without one spike in the batch. A convolution without a norm that trained well had 31 % in its
first layer."""
DEAD_NEEDS = 10.0
"""Spikes that a channel would have at the layer's mean rate. With fewer, a silent channel may be chance (exp(-10) with
ten)."""
FORGETS = 0.05
"""Share of the potential that is kept. Under a twentieth, T timesteps are T separate ones, and time only costs."""
KEEPS = 0.99
"""Share of the potential that is kept: as good as no leak, if also"""
PILED_UP = 4.0
"""the potential's standard deviation at the last step is this many times the first's: neurons that drift away never
come back."""
SAME = 1e-4
"""Largest difference of two outputs over the largest output, up to which rounding may explain it."""

CARRIED_STATE = "state carried over"

LEAKS = {
    "spikingjelly": "LIFNode(tau=2.0) in these layers: half is kept",
    "snntorch": "snn.Leaky(beta=0.5) in these layers: half is kept",
    "norse": "LIFParameters(tau_mem_inv=0.5 / dt) in these layers: half is kept",
    "mpd_agl": "LIF(tau=0.5) in these layers: half is kept",
    "own": "a neuron that keeps half of its potential in these layers",
}
RESETS = {
    "spikingjelly": "functional.reset_net(net) before every batch (spikingjelly.activation_based.functional)",
    "snntorch": "utils.reset(net) before every batch (snntorch.utils)",
    "snntorch, nested": "for m in net.modules(): getattr(m, 'reset_mem', int)()  before every batch; "
    "snntorch.utils.reset(net) finds only neurons that are the network's own attributes",
    "own": "let your neurons forget their state before every batch",
}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One spiking layer on the batch, over all timesteps."""

    layer: str
    neuron: str
    library: str
    num_steps: int
    v_th: float
    tau: float | None
    """Share of the potential that is kept."""
    mean: float
    std: float
    """Of the potential, over batch, neurons and timesteps."""
    sigmas: float | None
    """How far the threshold lies above the mean, in standard deviations; None where the potential is constant."""
    rate: float
    width: float | None
    """Of the surrogate at the last timestep; None where it has none."""
    available: float | None
    """Share of neurons within the width."""
    grad_norm: float | None
    """Norm of dL/ds over neurons, samples and timesteps; None where no gradient came."""
    dead_channels: float | None
    """Share of channels that never fired; None where the batch is too small to tell."""
    growth: float | None
    """Standard deviation of the potential at the last timestep over the first's; None where the first is constant."""
    has_norm: bool
    """Whether a norm before the neuron is known; of other libraries' neurons only adapted ones know theirs."""
    uses: int
    is_read: bool
    """Whether the loss depends on the spikes: those of a layer whose potential is the output do not matter."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem."""

    problem: str
    layers: tuple[str, ...]
    where: str
    """The layers, as a person says it."""
    value: float
    """The figure of the worst layer."""
    limit: float
    """What it is held against."""
    figure: str
    """Both, as a clause."""
    why: str
    """Why it matters."""
    fix: str
    """The one line."""

    def __str__(self) -> str:
        """Three lines."""
        return f"{self.problem}: {self.where}; {self.figure}.\n    {self.why}\n    fix: {self.fix}"


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """The lines that fix a network, by what is known of it."""

    trained: bool
    adapted: bool

    def fit(self, row: Layer) -> str:
        """For a scale that does not fit the threshold."""
        if row.library != "mpd_agl":
            again = "mpd_agl.release(net); " if self.adapted else ""
            return again + f"mpd_agl.adapt(net, batch{', calibrate=' + repr('force') if self.trained else ''})"
        if row.has_norm:
            return "torch.nn.init.ones_(layer.norm.weight), torch.nn.init.zeros_(layer.norm.bias) in these layers"
        return "SpikingBlock(synapse, method='mpd-agl'), with tdBN, in place of these layers"

    def width(self, row: Layer) -> str:
        """For a width that does not fit the potential."""
        if row.library == "mpd_agl" and (row.sigmas is None or row.sigmas <= FAR):
            return "SpikingBlock(synapse, method='mpd-agl') or LIF(method='mpd-agl') in these layers"
        return self.fit(row)

    def mean(self, row: Layer) -> str:
        """For neurons that always fire. A scale does not move a mean above the threshold; a norm does."""
        return self.norm(row) if row.mean - row.v_th > row.std else self.fit(row)

    def norm(self, row: Layer) -> str:
        """For channels that differ too much."""
        return "a norm per channel before the neuron: nn.BatchNorm2d(channels)"

    def leak(self, row: Layer) -> str:
        """For a decay."""
        return LEAKS[row.library]

    def fading(self, row: Layer) -> str:
        """A gradient that the tails of an adapted surrogate carry still fades; a rectangle's does not."""
        fit = self.width(row)
        return fit[:-1] + ", surrogate='rectangular')" if self.adapted and row.library != "mpd_agl" else fit

    def growing(self, row: Layer) -> str:
        """For a gradient that grows."""
        clip = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) before optimizer.step()"
        return clip if self.adapted or row.library == "mpd_agl" else self.fit(row)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A problem that shows in a single figure of a layer."""

    name: str
    value: Callable[[Layer], float | None]
    limit: float
    is_over: bool
    """Whether layers over the limit have the problem, or those under it."""
    figure: str
    """A clause; `v` is the value, `row` the layer, `limit` the limit."""
    why: str
    fix: Callable[[Suggestions, Layer], str]


WITHIN = "{v:.2%} of the neurons lie within the surrogate's width {row.width:.3g}"

CHECKS = (
    Check(
        name="silent",
        value=lambda row: row.rate,
        limit=SILENT,
        is_over=False,
        figure="firing rate {v:.3%}, under {limit:.1%}",
        why="No spike, no information: the layers behind see the same for every input.",
        fix=Suggestions.fit,
    ),
    Check(
        name="saturated",
        value=lambda row: row.rate,
        limit=SATURATED,
        is_over=True,
        figure="firing rate {v:.1%}, over {limit:.0%}",
        why="Neurons that always fire send the same whatever they see, and every spike costs energy.",
        fix=Suggestions.mean,
    ),
    Check(
        name="potentials far below the threshold",
        value=lambda row: row.sigmas,
        limit=FAR,
        is_over=True,
        figure="the threshold is {v:.1f} standard deviations above the mean, over {limit:.2f}",
        why="Few neurons come near the threshold, so few fire and few get a gradient; no width alone helps.",
        fix=Suggestions.fit,
    ),
    Check(
        name="window too narrow",
        value=lambda row: row.available,
        limit=EMPTY_WINDOW,
        is_over=False,
        figure=WITHIN + ", under {limit:.0%}",
        why="A neuron outside of the window gets next to no gradient: these weights hardly change.",
        fix=Suggestions.width,
    ),
    Check(
        name="window too wide",
        value=lambda row: row.available if row.std > 0 else None,
        limit=FULL_WINDOW,
        is_over=True,
        figure=WITHIN + ", over {limit:.0%}",
        why="Neurons that never fire get the same gradient as those about to: it does not know what changes a spike.",
        fix=Suggestions.width,
    ),
    Check(
        name="dead channels",
        value=lambda row: row.dead_channels if row.rate >= SILENT else None,
        limit=DEAD,
        is_over=True,
        figure="{v:.0%} of the channels never fired on this batch, over {limit:.0%}",
        why="A channel that never fires computes nothing, and few of its neurons are near enough to get a gradient.",
        fix=Suggestions.norm,
    ),
    Check(
        name="leak that forgets everything",
        value=lambda row: row.tau if row.num_steps > 1 else None,
        limit=FORGETS,
        is_over=False,
        figure="{v:.2%} of the potential is kept from step to step, under {limit:.0%}",
        why="The timesteps are separate ones: nothing is integrated over time, and each costs a whole pass.",
        fix=Suggestions.leak,
    ),
    Check(
        name="leak that keeps everything",
        value=lambda row: row.growth if row.tau is not None and row.tau >= KEEPS else None,
        limit=PILED_UP,
        is_over=True,
        figure="{row.tau:.1%} of the potential is kept, and its spread grows by {v:.1f} over the steps, over {limit:g}",
        why="Potentials pile up: neurons that drift away never come back, and no width fits all steps.",
        fix=Suggestions.leak,
    ),
)


def examine(rows: Sequence[Layer], suggestions: Suggestions) -> list[Finding]:
    """All problems of the layers, given in the order in which they ran.

    Where the loss does not read a layer's spikes, but its potential, its spikes do not matter.
    """
    read = [row for row in rows if row.is_read]
    found = [_found_by(check, read, suggestions) for check in CHECKS]
    return [f for f in (_not_finite(rows), *found, _gradient(read, suggestions)) if f is not None]


def _found_by(check: Check, rows: Sequence[Layer], suggestions: Suggestions) -> Finding | None:
    values = [(v, row) for row in rows if (v := check.value(row)) is not None]
    bad = [(v, row) for v, row in values if (v > check.limit if check.is_over else v < check.limit)]
    if not bad:
        return None
    v, worst = (max if check.is_over else min)(bad, key=lambda pair: pair[0])
    figure = check.figure.format(v=v, row=worst, limit=check.limit)
    return Finding(
        problem=check.name,
        layers=tuple(row.layer for _, row in bad),
        where=_where([row for _, row in bad], rows),
        value=v,
        limit=check.limit,
        figure=figure + (f" (worst of {len(bad)}: {worst.layer})" if len(bad) > 1 else ""),
        why=check.why,
        fix=check.fix(suggestions, worst),
    )


def _where(bad: Sequence[Layer], rows: Sequence[Layer]) -> str:
    """All layers; from one on; or their names."""
    names = [row.layer for row in bad]
    if len(bad) == len(rows) > 1:
        return "in all layers"
    if len(bad) > 1 and names == [row.layer for row in rows[-len(bad) :]]:
        return f"from layer {len(rows) - len(bad) + 1} ({names[0]}) on"
    return "in " + ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _not_finite(rows: Sequence[Layer]) -> Finding | None:
    bad = [r for r in rows if not all(math.isfinite(x) for x in (r.mean, r.std, r.grad_norm or 0.0))]
    if not bad:
        return None
    return Finding(
        problem="not finite",
        layers=tuple(r.layer for r in bad),
        where=_where(bad, rows),
        value=math.nan,
        limit=math.inf,
        figure="potentials or gradients are NaN or infinite",
        why="One NaN in a gradient makes every weight NaN at the next step.",
        fix="load the last weights that were finite, and train with a tenth of the learning rate",
    )


def _gradient(rows: Sequence[Layer], suggestions: Suggestions) -> Finding | None:
    """From the last layer back to the first: the whole ratio, and where going back loses or gains most."""
    known = [(r.grad_norm, r) for r in rows if r.grad_norm is not None and math.isfinite(r.grad_norm)]
    if len(known) < 2:
        return None
    (first, row), (last, _) = known[0], known[-1]
    ratio = first / last if last else 0.0
    if VANISHED <= ratio <= EXPLODED:
        return None
    if ratio < VANISHED:
        verb, most, limit, fix = "vanishes", min, VANISHED, suggestions.fading(row)
        said = f"{ratio:.2g} of the last's, under {VANISHED:g}"
        why = "The first layers hardly learn, with Adam less so: the last ones learn on features that stay random."
    else:
        verb, most, limit, fix = "explodes", max, EXPLODED, suggestions.growing(row)
        said = f"{ratio:.3g} times the last's, over {EXPLODED:g}"
        why = "A learning rate that suits the last layers is far too large for the first ones."
    steps = [(a / b if b else math.inf, front.layer, behind.layer) for (a, front), (b, behind) in pairwise(known)]
    factor, front, behind = most(steps)
    names = [r.layer for _, r in known]
    bad = names[: names.index(front) + 1]
    return Finding(
        problem=f"gradient {verb} through depth",
        layers=tuple(bad),
        where=f"in the first {len(bad)} of {len(known)} layers" if len(bad) > 1 else f"in {bad[0]}",
        value=ratio,
        limit=limit,
        figure=f"its norm at the first layer is {said}; it changes most from {behind} back to {front}, by {factor:.2g}",
        why=why,
        fix=fix,
    )


def carried_state(left: dict[str, tuple[str, bool]], gap: float) -> Finding:
    """The network came with states that change its output. `left`: name -> library, and whether a graph hangs on it."""
    library = next(iter(left.values()))[0]
    size = "the pass from there fails" if math.isinf(gap) else f"it changes the outputs by {gap:.0%} of the largest"
    nested = ", nested" if library == "snntorch" and any("." in name for name in left) else ""
    graph = " The state hangs on that pass's graph: this is 'Trying to backward through the graph a second time'."
    return Finding(
        problem=CARRIED_STATE,
        layers=tuple(left),
        where=f"in {len(left)} layer{'s' * (len(left) > 1)}",
        value=gap,
        limit=SAME,
        figure=f"the network came with the state of an earlier pass, and {size}, over {SAME:g}",
        why="Every batch starts from the potentials of the one before, which are other samples'."
        + graph * any(has_graph for _, has_graph in left.values()),
        fix=RESETS.get(library + nested, RESETS["own"]),
    )
