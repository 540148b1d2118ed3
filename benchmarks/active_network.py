"""A whole network at given firing rates, in inference and in a training step: event-driven, dense, its ANN, a peer."""

import copy
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import contenders, equivalence, peers
from benchmarks.active_layers import relative
from benchmarks.compare import Note, remarks
from benchmarks.equivalence import Agreement
from benchmarks.firing_rates import impose_rates
from benchmarks.timing import alternate, over
from benchmarks.workload import Workload
from mpd_agl.models import Network
from mpd_agl.nn import event_layers, fold
from mpd_agl.train.config import OptimConfig
from mpd_agl.train.optim import build_optimizer

OURS = "auto"
CONV_OF = {OURS: "auto", "event-driven everywhere": "event", "dense": "dense"}
ANN, CONVS_ALONE, PEER = "ANN, batch N", "dense convolutions alone", "SpikingJelly"
ORDER = (*CONV_OF, ANN, CONVS_ALONE, PEER)
MOST_OFF = 1e-5
"""How far a layer may be from its dense self on what flows in the timed network, relative to the largest value."""
Work = Callable[[], Any]


def measure(
    workload: Workload, wanted: Mapping[str, float], rounds: int, pause: Callable[[], None], note: Note
) -> dict[str, Any]:
    """Check and time the contenders of the workload; ratios to ours with `auto`."""
    training, left_out = workload.work == "train", {}
    base = contenders.create(workload, conv_impl="dense")
    x, y = contenders.inputs(workload, base)
    imposed = impose_rates(base, x, wanted)
    base.train(training)
    nets: dict[str, nn.Module] = {name: ours(workload, conv_impl, base) for name, conv_impl in CONV_OF.items()}
    agreement: dict[str, Agreement] = {}
    if training:
        if why := contenders.why_not("spikingjelly", workload):
            left_out[PEER] = why
        else:
            nets[PEER] = peers.rebuild(base, "spikingjelly")
        works = {name: step(net, x, y) for name, net in nets.items()}
        works[CONVS_ALONE] = contenders.convolutions_of(copy.deepcopy(base), x, train=True)
        agreement[CONVS_ALONE] = contenders.NO_OUTPUTS
    else:
        works = {name: answer(net, x) for name, net in nets.items()}
        works[ANN] = answer(contenders.timed_network("ann", workload), x[0] if workload.frames else x)
        agreement[ANN] = contenders.RELU
    note("the reference in float64")
    agrees_with = Reference(base, x)
    for name, net in nets.items():
        note(f"{name}: checking that it computes the same")
        works[name]()  # `auto` chooses now, on the batch that is timed
        agreement[name] = agrees_with.check(net)
    note(f"{rounds} rounds")
    times = alternate(works, rounds, pause)
    agrees = {name: agreement[name].agrees and agreement[OURS].agrees for name in times}
    return {
        "setting": workload.to_dict(),
        "rounds": rounds,
        "contenders": {
            name: {"ms": statistics.median(t), "spread_ms": [min(t), max(t)], "agreement": agreement[name].to_dict()}
            for name, t in times.items()
        },
        "ratios": {"base": OURS, "of": {n: over(t, times[OURS]) if agrees[n] else None for n, t in times.items()}},
        "left_out": left_out,
        "layers": {
            name: {**imposed[name], "choice": layer.choice and layer.choice.to_dict()}
            for name, layer in event_layers(nets[OURS]).items()
        },
    }


def ours(workload: Workload, conv_impl: str, base: Network) -> Network:
    """Our network with the base's weights and another way to convolve; folded for inference."""
    net = contenders.create(workload, conv_impl=conv_impl)
    net.load_state_dict(base.state_dict())
    return net.train() if workload.work == "train" else fold(net.eval())


def answer(net: nn.Module, x: Tensor) -> Work:
    """Inference of a batch."""

    def run() -> None:
        with torch.no_grad():
            net(x)

    return run


def step(net: nn.Module, x: Tensor, y: Tensor) -> Work:
    """A training step whose learning rate is 0, so that the firing rates stay as they are."""
    optimizer = build_optimizer(net, OptimConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x).mean(0), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        peers.reset(net)

    return run


class Reference:
    """The network in float64 on a few samples: what the contenders are checked against."""

    def __init__(self, base: Network, x: Tensor) -> None:
        few = contenders.CHECKED_SAMPLES
        self.x, self.few = x, x[:few] if x.dim() == 4 else x[:, :few]
        self.net = equivalence.reference(base)
        self.calls = equivalence.calls(self.net, self.few)

    def check(self, net: nn.Module) -> Agreement:
        """Compare blocks with float64 on equal inputs, and event-driven layers with their dense selves.

        The outputs of whole networks are not compared: one spike at the threshold that rounds the other way flips
        others behind it.
        """
        is_peer = any(isinstance(m, peers.PeerBlock) for m in net.modules())
        found = contenders.against(self.net, self.calls, copy.deepcopy(net), self.few, whole=is_peer)
        off, where = layers_off(net, self.x)
        if off > MOST_OFF:
            return Agreement(False, f"{where} differs from its dense self by {off:.1e}", found.differ, found.worst)
        return found


@torch.no_grad()
def layers_off(net: nn.Module, x: Tensor) -> tuple[float, str]:
    """The largest relative difference of a layer that can skip zeros from its dense self, and the layer's name."""
    worst = (0.0, "")

    def hook(name: str) -> Any:
        def compare(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            nonlocal worst
            worst = max(worst, (relative(output, layer.dense(inputs[0])), name))

        return compare

    handles = [layer.register_forward_hook(hook(name)) for name, layer in event_layers(net).items()]
    if handles:
        net(x)
    for handle in handles:
        handle.remove()
    return worst


def ordered(part: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The contenders, ours first. A record has them sorted by name."""
    return sorted(part["contenders"].items(), key=lambda item: ORDER.index(item[0]))


def text(part: dict[str, Any]) -> str:
    """Every contender in a line; no ratio for one whose outputs differ."""
    of = part["ratios"]["of"]
    lines = [
        f"{Workload.from_dict(part['setting']).title}; {part['rounds']} rounds, medians (least - most)",
        f"{'contender':28}{'time / ours':>15}{'':17}{'ms':>10}",
    ]
    for name, c in ordered(part):
        low, high = c["spread_ms"]
        ratio = f"{'outputs differ':>15}{'':17}"
        if of[name]:
            least, most = of[name]["range"]
            ratio = f"{of[name]['time']:15.2f}{f'  ({least:.2f} - {most:.2f})':17}"
        lines.append(f"{name:28}{ratio}{c['ms']:10.1f}  ({low:.1f} - {high:.1f})")
    return "\n".join([*lines, *remarks(part)])
