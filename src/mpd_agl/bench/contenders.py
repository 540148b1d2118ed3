"""Who runs: each contender as a function that does one unit of work, everything made from one seed, in the contender's best setting."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.bench import equivalence, peers
from mpd_agl.bench.equivalence import Agreement
from mpd_agl.bench.setting import Setting
from mpd_agl.errors import unknown_name
from mpd_agl.kernels import backends_here
from mpd_agl.models import Network, create_model
from mpd_agl.nn import TdBatchNorm, event_layers, fold
from mpd_agl.train.config import OptimConfig
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
        Contender("native", "ours, C++ kernels; inference with tdBN folded"),
        Contender(
            "native+auto", "ours with conv=auto: each pass of a convolution dense, event-driven or in Winograd's form"
        ),
        Contender("compiled", "ours through torch.compile; inference as one graph, tdBN folded"),
        Contender("eager", "ours in plain PyTorch; inference with tdBN folded"),
        Contender("native+recompute", "ours, stages computed again in the backward pass", works=("train",)),
        Contender("native-unfolded", "ours without folding", works=("infer",)),
        Contender("spikingjelly", "SpikingJelly, multi-step, channels_last", package="spikingjelly"),
        Contender("snntorch", "snnTorch, synapses over all steps at once, channels_last", package="snntorch"),
        Contender("ann", "the same network with ReLU at batch T*N, channels_last"),
        Contender("ann-compiled", "the same through torch.compile"),
        Contender("convs", "the network's convolutions alone, each in its faster memory format"),
    )
}
OPTIONS: dict[str, dict[str, Any]] = {"": {}, "recompute": {"recompute": True}, "auto": {"conv_impl": "auto"}}
"""What stands behind the + of a name."""
UNCHECKED = ("ann", "convs")
"""Not our function: nothing to compare."""
DEFAULT = {
    "train": ("native", "native+auto", "spikingjelly", "snntorch", "ann", "convs", "eager"),
    "infer": ("native", "native+auto", "spikingjelly", "snntorch", "ann", "convs", "eager"),
}


def why_not(name: str, setting: Setting) -> str:
    """Why a contender is left out here; "" where it runs."""
    if name not in CONTENDERS:
        raise unknown_name("contender", name, CONTENDERS)
    contender = CONTENDERS[name]
    if setting.work not in contender.works:
        return f"it is no contender of bench {setting.work}"
    if contender.package and find_spec(contender.package) is None:
        return "it is not installed; pip install -e .[bench] brings it"
    backend = "compiled" if "compiled" in name else name.partition("+")[0].partition("-")[0]
    return backends_here().get(backend, "")


def inputs(setting: Setting, net: Network) -> tuple[Tensor, Tensor]:
    """Images, or T frames, and labels; channels_last."""
    o = net.options
    generator = torch.Generator().manual_seed(1)
    shape = (setting.batch, o.in_channels, o.image_size, o.image_size)
    x = torch.randn((setting.num_steps, *shape) if setting.frames else shape, generator=generator)
    y = torch.randint(0, o.num_classes, (setting.batch,), generator=generator)
    return (x if setting.frames else x.contiguous(memory_format=torch.channels_last)), y


def network(setting: Setting, **options: Any) -> Network:
    """The network from its seed; for inference with running statistics of a batch, so that neurons fire as in a trained one."""
    torch.manual_seed(0)
    size = {"image_size": setting.image_size} if setting.image_size else {}
    made = {"width_mult": setting.width_mult, "num_steps": setting.num_steps, "method": setting.method}
    net = create_model(setting.model, **made, **size, **{"backend": "eager", **options}).train()
    if setting.work == "infer":
        norms = [m for m in net.modules() if isinstance(m, TdBatchNorm | nn.BatchNorm1d | nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        x = inputs(setting_of(setting, batch=8), net)[0]
        with torch.no_grad():
            net(x)
        for norm in norms:
            norm.momentum = 0.1
        net.eval()
    for module in net.modules():
        if hasattr(module, "backend"):
            module.backend = options.get("backend", "eager")
    return net


def setting_of(setting: Setting, **changes: Any) -> Setting:
    """A copy with some fields changed."""
    return Setting(**{**setting.to_dict(), **changes})


def timed_network(name: str, setting: Setting) -> nn.Module:
    """The network as it is timed."""
    if name.startswith("ann"):
        net = network(setting, ann=True)
        ann = fold(net) if setting.work == "infer" else net
        return torch.compile(ann, dynamic=False) if name == "ann-compiled" else ann  # type: ignore[return-value]
    if name in peers.PEERS:
        return peers.rebuild(network(setting), name)
    backend, _, option = name.partition("+")
    net = network(setting, backend=backend.partition("-")[0], **OPTIONS[option])
    if option == "auto":
        net.load_state_dict(network(setting).state_dict())  # running statistics to the bit
        for layer in event_layers(net).values():
            layer.choose("auto")  # on the batch that is timed
    if setting.work == "train" or name == "native-unfolded":
        return net
    folded = fold(net)
    return torch.compile(folded, dynamic=False) if name == "compiled" else folded  # type: ignore[return-value]


def build(name: str, setting: Setting) -> Callable[[], float]:
    """A function that does one unit of work and gives its loss (0 where there is none)."""
    if name == "convs":
        return convolutions(setting)
    net = timed_network(name, setting)
    x, y = inputs(setting, net)  # type: ignore[arg-type]
    if name.startswith("ann"):
        x = (x if setting.frames else x.unsqueeze(0).expand(setting.num_steps, *x.shape)).flatten(0, 1)
        x, y = x.contiguous(memory_format=torch.channels_last), y.repeat(setting.num_steps)
    if setting.work == "infer":

        def answer() -> float:
            with torch.no_grad():
                net(x)
            peers.reset(net)
            return 0.0

        return answer
    optimizer = build_optimizer(net, OptimConfig())

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x).mean(0), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        peers.reset(net)
        return float(loss.detach())

    return step


def convolutions(setting: Setting) -> Callable[[], float]:
    """Every convolution on inputs of its own size, forward and (in training) backward; nothing else."""
    net = network(setting, backend="auto")
    return convolutions_of(net, inputs(setting, net)[0], train=setting.work == "train")


def convolutions_of(net: Network, x: Tensor, *, train: bool) -> Callable[[], float]:
    """The convolutions of this network, on what flows into them."""
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


def check(name: str, setting: Setting) -> Agreement:
    """Whether a contender computes what the others do, on a few samples with the weights that are timed."""
    few = setting_of(setting, batch=min(CHECKED_SAMPLES, setting.batch))
    if name == "convs":
        return Agreement(True, "a bound, not a network: it has no outputs")
    if name.startswith("ann"):
        how = "another function (ReLU): the same layers and inputs"
        if name == "ann":
            return Agreement(True, how)
        plain, compiled = timed_network("ann", few), timed_network(name, few)
        x = inputs(few, plain)[0]  # type: ignore[arg-type]
        return logits_agree(plain, compiled, x if setting.frames else x.unsqueeze(0), f"{how}; its logits eagerly")
    ours = equivalence.reference(network(few))
    x, _ = inputs(few, ours)
    if name == "compiled" and setting.work == "infer":
        whole = torch.compile(fold(ours), dynamic=False)
        return equivalence.logits_agree(ours, whole, x.double(), rtol=1e-9, how="logits in float64")  # type: ignore[arg-type]
    return against(ours, equivalence.calls(ours, x), timed_network(name, few), x, whole=name in peers.PEERS)


def against(
    ours: Network, found: dict[str, equivalence.Call], theirs: nn.Module, x: Tensor, *, whole: bool
) -> Agreement:
    """Whether a contender, which is used up, fires where the reference does; `whole`: and has its logits in float64."""
    result = equivalence.blocks_agree(found, theirs, ours.options.v_th)
    if not (result.agrees and whole):
        return result
    theirs = theirs.double()
    peers.reset(theirs)
    logits = equivalence.logits_agree(ours, theirs, x.double(), rtol=1e-9, how=f"{result.how}; logits in float64")
    return Agreement(logits.agrees, logits.how, result.differ, result.worst)


def logits_agree(plain: nn.Module, compiled: nn.Module, x: Tensor, how: str) -> Agreement:
    """An ANN against its compiled self, in float32."""
    return equivalence.logits_agree(plain, compiled, x, rtol=1e-4, how=how)
