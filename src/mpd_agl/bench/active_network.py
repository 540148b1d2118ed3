"""A whole network at given firing rates: event-driven, dense, and what stands beside it, in inference and in a training step."""

import copy
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.bench import contenders, equivalence, peers
from mpd_agl.bench.active_layers import relative
from mpd_agl.bench.alternate import alternate, over
from mpd_agl.bench.compare import Note
from mpd_agl.bench.equivalence import Agreement
from mpd_agl.bench.firing_rates import impose
from mpd_agl.bench.setting import Setting, from_dict
from mpd_agl.models import Network, create_model
from mpd_agl.nn import event_layers, fold
from mpd_agl.train.config import OptimConfig
from mpd_agl.train.optim import build_optimizer

OURS = "auto"
CONV_OF = {OURS: "auto", "event-driven everywhere": "event", "dense": "dense"}
ANN, CONVS_ALONE, PEER = "ANN, batch N", "dense convolutions alone", "SpikingJelly"
ORDER = (*CONV_OF, ANN, CONVS_ALONE, PEER)
MOST_OFF = 1e-5
"""Of a layer against its dense self, on the input that flows in the timed network."""
Work = Callable[[], Any]


def measure(setting: Setting, wanted: Mapping[str, float], rounds: int, note: Note) -> dict[str, Any]:
    """Check and time the contenders of inference (`infer`) or of a training step (`train`); ratios to ours with `auto`."""
    training, left_out = setting.work == "train", {}
    base = network(setting, "dense")
    x, y = contenders.inputs(setting, base)
    imposed = impose(base, x, wanted)
    base.train(training)
    nets: dict[str, nn.Module] = {name: _ours(setting, conv, base) for name, conv in CONV_OF.items()}
    agreement: dict[str, Agreement] = {}
    if training:
        if why := contenders.why_not("spikingjelly", setting):
            left_out[PEER] = why
        else:
            nets[PEER] = peers.rebuild(base, "spikingjelly")
        works = {name: step(net, x, y) for name, net in nets.items()}
        works[CONVS_ALONE] = contenders.convolutions_of(copy.deepcopy(base), x, train=True)
        agreement[CONVS_ALONE] = Agreement(True, "a bound, not a network: it has no outputs")
    else:
        works = {name: answer(net, x) for name, net in nets.items()}
        works[ANN] = answer(contenders.timed_network("ann", setting), x[0] if setting.frames else x)
        agreement[ANN] = Agreement(True, "another function (ReLU): the same layers and inputs")
    note("the reference in float64")
    agrees_with = Reference(base, x)
    for name, net in nets.items():
        note(f"{name}: checking that it computes the same")
        works[name]()  # `auto` chooses on the batch that is timed
        agreement[name] = agrees_with.check(net)
    note(f"{rounds} rounds")
    times = alternate(works, rounds)
    agrees = {name: agreement[name].agrees and agreement[OURS].agrees for name in times}
    return {
        "setting": setting.to_dict(),
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


def network(setting: Setting, conv: str) -> Network:
    """The setting's network from its seed."""
    torch.manual_seed(0)
    size = {"image_size": setting.image_size} if setting.image_size else {}
    made = {"width_mult": setting.width_mult, "num_steps": setting.num_steps, "method": setting.method}
    return create_model(setting.model, conv_impl=conv, **made, **size)


def _ours(setting: Setting, conv: str, base: Network) -> Network:
    net = network(setting, conv)
    net.load_state_dict(base.state_dict())
    return net.train() if setting.work == "train" else fold(net.eval())


def answer(net: nn.Module, x: Tensor) -> Work:
    """Inference of a batch."""

    def run() -> None:
        with torch.no_grad():
            net(x)

    return run


def step(net: nn.Module, x: Tensor, y: Tensor) -> Work:
    """A training step whose learning rate is 0, so that rates stay as they are."""
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
        """Blocks against float64 on equal inputs, and event-driven layers against their dense selves on what flows through them.

        Whole networks may differ: a spike at the threshold flips others.
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
    """The contenders, ours first; JSON sorts them by name."""
    return sorted(part["contenders"].items(), key=lambda item: ORDER.index(item[0]))


def text(part: dict[str, Any]) -> str:
    """Every contender in a line; no ratio for one whose outputs differ."""
    of = part["ratios"]["of"]
    lines = [
        f"{from_dict(part['setting']).title}; {part['rounds']} rounds, medians (least - most)",
        f"{'contender':28}{'time / ours':>15}{'':17}{'ms':>10}",
    ]
    for name, c in ordered(part):
        low, high = c["spread_ms"]
        ratio = f"{'outputs differ':>15}{'':17}"
        if of[name]:
            least, most = of[name]["range"]
            ratio = f"{of[name]['time']:15.2f}{f'  ({least:.2f} - {most:.2f})':17}"
        lines.append(f"{name:28}{ratio}{c['ms']:10.1f}  ({low:.1f} - {high:.1f})")
    for name, c in ordered(part):
        if not c["agreement"]["agrees"]:
            lines.append(f"{name}: no ratio, its outputs are not ours ({c['agreement']['how']})")
    lines += [f"{name}: left out, {why}" for name, why in part["left_out"].items()]
    return "\n".join(lines)
