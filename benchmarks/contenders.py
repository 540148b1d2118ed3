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
from benchmarks.workload import Workload
from mpd_agl.adaptation import adapt
from mpd_agl.errors import unknown_name
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import Network, create_model
from mpd_agl.models.plan import InferencePlan
from mpd_agl.nn import SpikingBlock, TdBatchNorm, event_layers, fold
from mpd_agl.ops import backends_here
from mpd_agl.rivals.objectives import (
    HeadOptions,
    LocalTandem,
    Robust,
    RobustOptions,
    ShortcutHeads,
    stage_ends,
)
from mpd_agl.train.attacks import Pixels
from mpd_agl.train.config import OptimConfig
from mpd_agl.train.losses import cross_entropy, tet
from mpd_agl.train.objective import Distill, DistillOptions, Objective
from mpd_agl.train.optim import build_optimizer

CHECKED_SAMPLES = 4


@dataclass(frozen=True)
class Contender:
    """A name, what stands behind it, and the package it needs."""

    name: str
    about: str
    package: str = ""
    works: tuple[str, ...] = ("train", "infer")


CONTENDERS = {
    c.name: c
    for c in (
        Contender("ours", "ours as it comes: conv_impl=auto; inference by a plan, in one native call"),
        Contender("ours-int8", "ours with hidden weights of 8 bits, by a plan", works=("infer",)),
        Contender("native", "ours, C++ kernels, dense convolutions; inference with tdBN folded"),
        Contender("native+auto", "ours with conv_impl=auto: each pass dense, event-driven or in Winograd's form"),
        Contender("compiled", "ours through torch.compile; inference as one graph, tdBN folded"),
        Contender("eager", "ours in plain PyTorch; inference with tdBN folded"),
        Contender("native+recompute", "ours, stages computed again in the backward pass", works=("train",)),
        Contender("native-unfolded", "ours without folding", works=("infer",)),
        Contender("spikingjelly", "SpikingJelly, multi-step, channels_last", package="spikingjelly"),
        Contender("spikingjelly+adapt", "the same, adapted", package="spikingjelly", works=("train",)),
        Contender("spikingjelly+fuse", "the same, adapted and fused", package="spikingjelly", works=("train",)),
        Contender("snntorch", "snnTorch, synapses over all steps at once, channels_last", package="snntorch"),
        Contender("ann", "the same network with ReLU at batch T*N, channels_last"),
        Contender("ann-compiled", "the same through torch.compile"),
        Contender("convs", "the network's convolutions alone, each in its faster memory format"),
    )
}
OPTIONS: dict[str, dict[str, Any]] = {"": {}, "recompute": {"recompute": True}, "auto": {"conv_impl": "auto"}}
PLANS = {"ours": False, "ours-int8": True}
"""Contenders that infer by a plan, and whether their weights are whole numbers."""
"""Options of the network, by what stands behind the + of a contender's name."""
UNCHECKED = ("ann", "convs")
"""They compute another function, so there is nothing to compare."""
DEFAULT = ("ours", "ours-int8", "spikingjelly", "snntorch", "ann", "convs")
MOST_FLIPPED = 0.25
"""Share of checked samples in which a spike at the threshold may round the other way."""
NO_OUTPUTS = Agreement(True, "a bound, not a network: it has no outputs")
RELU = Agreement(True, "another function (ReLU): the same layers and inputs")


def why_not(name: str, workload: Workload) -> str:
    """Why a contender cannot run here; "" if it can."""
    if name not in CONTENDERS:
        raise unknown_name("contender", name, CONTENDERS)
    contender = CONTENDERS[name]
    if workload.work not in contender.works:
        return f"it is no contender of bench {workload.work}"
    if contender.package and find_spec(contender.package) is None:
        return "it is not installed; pip install -e .[bench] brings it"
    backend = "compiled" if "compiled" in name else name.partition("+")[0].partition("-")[0]
    needs_native = backend == "ours" and workload.work == "infer"
    return backends_here().get("native" if needs_native else backend, "")


def default_for(workload: Workload) -> list[str]:
    """Who runs if nobody is named."""
    return [name for name in DEFAULT if workload.work in CONTENDERS[name].works]


def inputs(workload: Workload, net: Network) -> tuple[Tensor, Tensor]:
    """Images, or T frames, and labels; channels_last."""
    o = net.options
    generator = torch.Generator().manual_seed(1)
    shape = (workload.batch, o.in_channels, o.image_size, o.image_size)
    x = torch.randn((workload.num_steps, *shape) if workload.frames else shape, generator=generator)
    y = torch.randint(0, o.num_classes, (workload.batch,), generator=generator)
    return (x if workload.frames else x.contiguous(memory_format=torch.channels_last)), y


def create(workload: Workload, **options: Any) -> Network:
    """The workload's network from its seed."""
    torch.manual_seed(0)
    size: dict[str, Any] = {"image_size": workload.image_size} if workload.image_size else {}
    fields = ("width_mult", "num_steps", "method", "norm", "attention", "start")
    made = {field: getattr(workload, field) for field in fields}
    return create_model(workload.model, **made, **size, **{"conv_impl": "dense", **options})


def network(workload: Workload, **options: Any) -> Network:
    """The network in the workload's mode; for inference with running statistics of a batch, so that neurons fire."""
    net = create(workload, **{"backend": "eager", **options}).train()
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
    if name.startswith("ann"):
        net = network(workload, ann=True)
        ann = fold(net) if workload.work == "infer" else net
        return torch.compile(ann, dynamic=False) if name == "ann-compiled" else ann  # type: ignore[return-value]
    if name in PLANS and workload.work == "infer":
        return InferencePlan(network(workload), int8=PLANS[name])
    backend, _, option = ("auto", "", "auto") if name == "ours" else name.partition("+")
    if backend in peers.PEERS:
        rebuilt = peers.rebuild(network(workload), backend)
        if option:  # the scale stays as it is: only the widths, and the kernel, are ours
            some = inputs(replace(workload, batch=8), rebuilt)[0]
            adapt(rebuilt, some, calibrate=False, fuse=option == "fuse")
            peers.reset(rebuilt)
        return rebuilt
    net = network(workload, backend=backend.partition("-")[0], **OPTIONS[option])
    if option == "auto":
        net.load_state_dict(network(workload).state_dict())  # the same running statistics, to the bit
        for layer in event_layers(net).values():
            layer.choose("auto")  # forget the small batch: choose again on the one that is timed
    if workload.work == "train" or name == "native-unfolded":
        return net
    folded = fold(net)
    return torch.compile(folded, dynamic=False) if name == "compiled" else folded  # type: ignore[return-value]


def build(name: str, workload: Workload) -> Callable[[], float]:
    """A function that does one unit of work and returns its loss, or 0 where there is none."""
    if name == "convs":
        return convolutions(workload)
    net = timed_network(name, workload)
    x, y = inputs(workload, net)  # type: ignore[arg-type]
    if name.startswith("ann"):
        x = (x if workload.frames else x.unsqueeze(0).expand(workload.num_steps, *x.shape)).flatten(0, 1)
        x, y = x.contiguous(memory_format=torch.channels_last), y.repeat(workload.num_steps)
    if workload.work == "infer":

        def answer() -> float:
            with torch.no_grad():
                net(x)
            peers.reset(net)
            return 0.0

        return answer
    objective = objective_of(workload, net)
    optimizer = build_optimizer(nn.ModuleList([net, objective]) if objective else net, OptimConfig())

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x).mean(0), y) if objective is None else objective(net, x, y)[1]
        loss.backward()
        optimizer.step()
        peers.reset(net)
        return float(loss.detach())

    return step


def objective_of(workload: Workload, net: nn.Module) -> Objective | None:
    """What the workload's loss needs beside the output; teachers have random weights, which cost the same."""
    if workload.loss == "ce":
        return None
    if workload.loss == "tet":
        return Objective(tet)
    assert isinstance(net, Network)
    if workload.loss == "robust":
        half, r = (0.5,) * net.options.in_channels, RobustOptions()
        return Robust(cross_entropy, Pixels(half, half), eps=r.robust_eps, step=r.robust_step, weight=r.robust_weight)
    if workload.loss == "shortcut-heads":
        share = HeadOptions().head_share
        return ShortcutHeads(cross_entropy, stage_ends(net), net.options.num_classes, share=share)
    teacher, d = create(workload, ann=True), DistillOptions()
    if workload.loss == "distill":
        return Distill(cross_entropy, teacher, share=d.distill_share, temperature=d.distill_temperature)
    names = [n for n, m in net.named_modules() if isinstance(m, SpikingBlock)]
    return LocalTandem(cross_entropy, teacher, names, "readout", weight=1.0)


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
        work.append(min(choices, key=_quickest))

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


def _quickest(run: Callable[[], None]) -> float:
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
    if name == "ann-compiled":
        plain, compiled = timed_network("ann", few), timed_network(name, few)
        x = inputs(few, plain)[0]  # type: ignore[arg-type]
        x = x if workload.frames else x.unsqueeze(0)
        return equivalence.logits_agree(plain, compiled, x, rtol=1e-4, how=f"{RELU.how}; its logits eagerly")
    if name in PLANS and workload.work == "infer":
        return plan_agrees(name, few)
    ours = equivalence.reference(network(few))
    x, _ = inputs(few, ours)
    if name == "compiled" and workload.work == "infer":
        whole = torch.compile(fold(ours), dynamic=False)
        how = "logits in float64"
        return equivalence.logits_agree(ours, whole, x.double(), rtol=1e-9, how=how)  # type: ignore[arg-type]
    return against(ours, equivalence.calls(ours, x), timed_network(name, few), x, whole=name in peers.PEERS)


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
    ours: Network, found: dict[str, equivalence.Call], theirs: nn.Module, x: Tensor, *, whole: bool
) -> Agreement:
    """Whether a contender fires where the reference does and, if `whole`, has its logits in float64.

    The contender is changed to float64 for that: time another one.
    """
    result = equivalence.blocks_agree(found, theirs, ours.options.v_th)
    if not (result.agrees and whole):
        return result
    theirs = theirs.double()
    peers.reset(theirs)
    logits = equivalence.logits_agree(ours, theirs, x.double(), rtol=1e-9, how=f"{result.how}; logits in float64")
    return Agreement(logits.agrees, logits.how, result.differ, result.worst)
