"""Who runs: each contender as a function that does one unit of work, made from one seed, in its best setting."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import equivalence, peers
from benchmarks.equivalence import Agreement
from benchmarks.release import make_inputs, training_step
from benchmarks.workload import Workload
from mpd_agl.errors import unknown_name
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import Network, create_model
from mpd_agl.models.plan import InferencePlan
from mpd_agl.nn import TdBatchNorm, fold
from mpd_agl.ops import backends_here

CHECKED_SAMPLES = 4


@dataclass(frozen=True)
class Contender:
    """A name, what it runs, and the package it needs."""

    name: str
    about: str
    package: str = ""
    works: tuple[str, ...] = ("train", "infer")


CONTENDERS = {
    c.name: c
    for c in (
        Contender("mpd_agl", "this tree with its defaults; inference by a plan, in one native call"),
        Contender("mpd_agl-int8", "this tree, hidden weights of 8 bits, by a plan", works=("infer",)),
        Contender("release", "another installation of mpd_agl, see --release", works=("train",)),
        Contender("native", "this tree, C++ kernels, torch's convolutions; inference with tdBN folded"),
        Contender("eager", "this tree in plain PyTorch; inference with tdBN folded"),
        Contender("recompute", "as native, stages computed again in the backward pass", works=("train",)),
        Contender("spikingjelly", "SpikingJelly, multi-step, channels_last", package="spikingjelly"),
        Contender("snntorch", "snnTorch, synapses over all steps at once, channels_last", package="snntorch"),
        Contender("ann", "the same network with ReLU at batch T*N, channels_last"),
        Contender("convs", "the network's convolutions alone, each in its faster memory format"),
    )
}
PLANS = {"mpd_agl": False, "mpd_agl-int8": True}
"""Contenders that infer by a plan, and whether their weights are whole numbers."""
UNCHECKED = ("ann", "convs", "release")
"""Two compute another function; the first loss of the other installation is compared when it is known."""
DEFAULT = ("mpd_agl", "mpd_agl-int8", "spikingjelly", "snntorch", "ann", "convs")
MOST_FLIPPED = 0.25
"""Share of checked samples in which a spike at the threshold may round the other way."""
NO_OUTPUTS = Agreement(True, "a bound, not a network: it has no outputs")
RELU = Agreement(True, "another function (ReLU): the same layers and inputs")
FIRST_LOSS = Agreement(False, "its first loss, on equal weights and inputs")


def why_not(name: str, workload: Workload) -> str:
    """Why a contender cannot run here; "" if it can."""
    if name not in CONTENDERS:
        raise unknown_name("contender", name, CONTENDERS)
    contender = CONTENDERS[name]
    if workload.work not in contender.works:
        return f"it does not do {workload.work}"
    if contender.package and find_spec(contender.package) is None:
        return "it is not installed; pip install -e .[bench] brings it"
    if name == "release":
        return "" if workload.release else "name its folder with --release FOLDER"
    if name.startswith("mpd_agl"):
        return backends_here()["native"] if workload.work == "infer" else ""
    return backends_here().get("native" if name == "recompute" else name, "")


def default_for(workload: Workload) -> list[str]:
    """Who runs by default."""
    return [name for name in DEFAULT if workload.work in CONTENDERS[name].works]


def inputs(workload: Workload, net: Network) -> tuple[Tensor, Tensor]:
    """Images, or T frames, and labels; channels_last."""
    return make_inputs(net.options, workload.batch, workload.num_steps)


def create(workload: Workload, **options: Any) -> Network:
    """The workload's network from its seed."""
    torch.manual_seed(0)
    size: dict[str, Any] = {"image_size": workload.image_size} if workload.image_size else {}
    given = {field: getattr(workload, field) for field in ("width_mult", "num_steps", "method")}
    return create_model(workload.model, **given, **size, **options)


def network(workload: Workload, **options: Any) -> Network:
    """The network in the workload's mode; for inference with running statistics of a batch, so that neurons fire."""
    net = create(workload, **{"backend": "eager", "conv_impl": "dense", **options}).train()
    if workload.work == "train":
        return net
    norms = [m for m in net.modules() if isinstance(m, TdBatchNorm | nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        net(inputs(replace(workload, batch=8), net)[0])
    for norm in norms:
        norm.momentum = 0.1
    return net.eval()


def timed_network(name: str, workload: Workload) -> nn.Module:
    """The network as it is timed."""
    infers = workload.work == "infer"
    if name == "ann":
        net = network(workload, ann=True)
        return fold(net) if infers else net
    if name in PLANS:
        return InferencePlan(network(workload), int8=PLANS[name]) if infers else create(workload).train()
    if name in peers.PEERS:
        return peers.rebuild(network(workload), name)
    net = network(workload, backend="native" if name == "recompute" else name, recompute=name == "recompute")
    if not infers:
        return net
    return torch.compile(fold(net), dynamic=False) if name == "compiled" else fold(net)  # type: ignore[return-value]


def build(name: str, workload: Workload) -> Callable[[], float]:
    """A function that does one unit of work and returns its loss, or 0 where there is none."""
    if name == "convs":
        return convolutions(workload)
    net = timed_network(name, workload)
    x, y = inputs(workload, net)  # type: ignore[arg-type]
    if name == "ann":
        x = (x if workload.frames else x.unsqueeze(0).expand(workload.num_steps, *x.shape)).flatten(0, 1)
        x, y = x.contiguous(memory_format=torch.channels_last), y.repeat(workload.num_steps)
    if workload.work == "infer":

        def answer() -> float:
            with torch.no_grad():
                net(x)
            peers.reset(net)
            return 0.0

        return answer
    return training_step(net, x, y, after=peers.reset)


def convolutions(workload: Workload) -> Callable[[], float]:
    """Every convolution on inputs of its own size, forward and in training also backward; nothing else."""
    net = network(workload, backend="auto")
    return convolutions_of(net, inputs(workload, net)[0], train=workload.work == "train")


def convolutions_of(net: Network, x: Tensor, *, train: bool) -> Callable[[], float]:
    """The convolutions of this network alone, each on what flows into it."""
    seen: list[tuple[nn.Conv2d, Tensor]] = []
    handles = [
        m.register_forward_hook(lambda m, i, o: seen.append((m, i[0].detach())))
        for m in net.modules()
        if isinstance(m, nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    work = []
    for number, (conv, inputs_NC) in enumerate(seen):
        choices = [
            _convolution(conv, inputs_NC, train, number > 0, layout)
            for layout in (torch.channels_last, torch.contiguous_format)
        ]
        work.append(min(choices, key=_fastest))

    def step() -> float:
        for run in work:
            run()
        return 0.0

    return step


def _convolution(
    conv: nn.Conv2d, inputs_NC: Tensor, train: bool, to_input: bool, layout: torch.memory_format
) -> Callable[[], None]:
    x = inputs_NC.contiguous(memory_format=layout).requires_grad_(train and to_input)
    weight = conv.weight.detach().contiguous(memory_format=layout).requires_grad_(train)
    wanted = [weight, x] if to_input else [weight]

    def run() -> None:
        if not train:
            with torch.no_grad():
                F.conv2d(x, weight, None, conv.stride, conv.padding)
            return
        out = F.conv2d(x, weight, None, conv.stride, conv.padding)
        torch.autograd.grad(out, wanted, out.detach())

    return run


def _fastest(run: Callable[[], None]) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def check(name: str, workload: Workload) -> Agreement:
    """Whether a contender computes what the others do, on a few samples with the weights that are timed."""
    few = replace(workload, batch=min(CHECKED_SAMPLES, workload.batch))
    if name == "convs":
        return NO_OUTPUTS
    if name == "ann":
        return RELU
    if name == "release":
        return FIRST_LOSS
    if name in PLANS and workload.work == "infer":
        return plan_agrees(name, few)
    reference = equivalence.reference(network(few))
    x, _ = inputs(few, reference)
    if name == "compiled" and workload.work == "infer":
        whole = torch.compile(fold(reference), dynamic=False)
        how = "logits in float64"
        return equivalence.logits_agree(reference, whole, x.double(), rtol=1e-9, how=how)  # type: ignore[arg-type]
    return against(reference, equivalence.calls(reference, x), timed_network(name, few), x, whole=name in peers.PEERS)


@torch.no_grad()
def plan_agrees(name: str, workload: Workload) -> Agreement:
    """Whether a plan gives the logits of its network in plain operators, sample by sample."""
    net = network(workload)
    x, _ = inputs(workload, net)
    want_TNK = plain_network(net, int8=PLANS[name])(x)
    off_N = (timed_network(name, workload)(x) - want_TNK).abs().amax((0, 2)) / want_TNK.abs().max()
    flipped = float((off_N > 1e-4).float().mean())
    how = f"logits of {len(off_N)} samples against plain operators, weights {'int8' if PLANS[name] else 'float32'}"
    return Agreement(flipped <= MOST_FLIPPED, how, flipped)


def against(
    reference: Network, found: dict[str, equivalence.Call], theirs: nn.Module, x: Tensor, *, whole: bool
) -> Agreement:
    """Whether a contender fires where the reference does and, if `whole`, has its logits in float64.

    The contender is changed to float64 for that: time another one.
    """
    result = equivalence.blocks_agree(found, theirs, reference.options.v_th)
    if not (result.agrees and whole):
        return result
    theirs = theirs.double()
    peers.reset(theirs)
    logits = equivalence.logits_agree(reference, theirs, x.double(), rtol=1e-9, how=f"{result.how}; logits in float64")
    return Agreement(logits.agrees, logits.how, result.differ, result.worst)
