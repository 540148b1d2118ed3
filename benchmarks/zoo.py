"""A training step of SpikingJelly's own networks, unchanged, adapted, and fused.

The networks are those of its model zoo, with its LIF neurons in multi-step mode and an image repeated at every
timestep, as its users train them. All run in one process, in turns, from the same weights.
"""

import copy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.compare import Note, provenance
from benchmarks.timing import FixedLoop, alternate, busy, over
from mpd_agl.adaptation import adapt
from mpd_agl.adaptation.find import to_rest
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import library as native
from mpd_agl.ops import reuse_pages

WHAT = "python -m benchmarks adapt"
NETS = {
    "spiking_resnet18": ("spiking_resnet", "ResNet-18, currents added before the neuron"),
    "sew_resnet18": ("sew_resnet", "ResNet-18, spikes added (SEW-ADD)"),
    "spiking_vgg11_bn": ("spiking_vgg", "VGG-11 with batch norm, 4096-4096 FC"),
}
BASE = "spikingjelly"
WAYS: dict[str, dict[str, Any] | None] = {
    BASE: None,
    "adapted": {},
    "adapted, measured moments": {"moments": "measured"},
    "adapted, width held": {"method": None},
    "fused, dense convolutions": {"fuse": "dense"},
    "fused": {"fuse": True},
}
"""What `adapt` is called with; None where it is not called."""


@contextmanager
def _torchvision() -> Iterator[None]:
    """The zoo imports torchvision for a download function alone; where it is missing, torch's own replaces it."""
    name = "torchvision._internally_replaced_utils"
    if find_spec("torchvision") is not None or name in sys.modules:
        yield
        return
    replacements = {n: types.ModuleType(n) for n in ("torchvision", "torchvision.models", name)}
    vars(replacements[name])["load_state_dict_from_url"] = torch.hub.load_state_dict_from_url
    sys.modules.update(replacements)
    try:
        yield
    finally:
        for n in replacements:
            sys.modules.pop(n, None)


def network(name: str) -> nn.Module:
    """A network of SpikingJelly's zoo with its defaults, ten classes, multi-step."""
    if name not in NETS:
        raise unknown_name("network of SpikingJelly's zoo", name, NETS)
    if find_spec("spikingjelly") is None:
        raise InputError("SpikingJelly is not installed; pip install -e .[bench] brings it.")
    with _torchvision():
        zoo = import_module(f"spikingjelly.activation_based.model.{NETS[name][0]}")
        from spikingjelly.activation_based import functional, neuron, surrogate

    torch.manual_seed(0)
    options = {"cnf": "ADD"} if name.startswith("sew") else {}
    net: nn.Module = getattr(zoo, name)(
        spiking_neuron=neuron.LIFNode,
        surrogate_function=surrogate.ATan(),
        detach_reset=True,
        num_classes=10,
        **options,
    )
    functional.set_step_mode(net, "m")
    return net


def measure(
    name: str,
    ways: Sequence[str],
    *,
    num_steps: int,
    batch: int,
    image_size: int,
    method: str = "mpd-agl",
    rounds: int,
    threads: int,
    note: Note,
) -> dict[str, Any]:
    """The record: each way's time, its ratio to SpikingJelly's, and the loss of the first step."""
    for way in ways:
        if way not in WAYS:
            raise unknown_name("way", way, WAYS)
    torch.set_num_threads(threads)
    reuse_pages()
    base = network(name)
    generator = torch.Generator().manual_seed(1)
    x_NCHW = torch.randn(batch, 3, image_size, image_size, generator=generator)
    x_TNCHW = x_NCHW.unsqueeze(0).repeat(num_steps, 1, 1, 1, 1)
    y = torch.randint(0, 10, (batch,), generator=generator)
    few = x_TNCHW[:, :8]
    works: dict[str, Callable[[], float]] = {}
    found: dict[str, dict[str, Any]] = {}
    for way in ways:
        note(way)
        net = copy.deepcopy(base)
        options = WAYS[way]
        if options is not None:
            adapt(net, few, calibrate=False, **{"method": method, **options})
        works[way] = _step(net, x_TNCHW, y)
        found[way] = {"first_loss": works[way]()}
    loop = FixedLoop(threads)
    times = alternate(works, rounds, loop)
    for way in ways:
        found[way] |= {"ms": times[way]}
        if way != BASE and BASE in ways:
            found[way]["over_spikingjelly"] = over(times[way], times[BASE])
            found[way]["speed_up"] = over(times[BASE], times[way])
    setting = {"T": num_steps, "batch": batch, "image_size": image_size, "threads": threads}
    facts = {"simd": native.level() if not native.load()[1] else "none", "rounds": rounds, **setting}
    slow = {"slowdown": loop.slowdowns()}
    return {"what": WHAT, "network": name, "setting": facts, "ways": found, **slow, **provenance()}


def _step(net: nn.Module, x_TNCHW: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> float:
        torch.manual_seed(0)  # the same dropout for all
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x_TNCHW).mean(0), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        to_rest(net)
        return float(loss.detach())

    return step


def text(record: dict[str, Any]) -> str:
    """The record as a table of text."""
    s = record["setting"]
    lines = [
        f"training step: SpikingJelly's {record['network']}, T={s['T']}, batch {s['batch']}, "
        f"{s['image_size']}x{s['image_size']}, "
        f"{s['threads']} threads, {s['simd']}",
        f"{'':28} {'ms':>9} {'speed-up':>9}  {'range':16} first loss",
    ]
    for way, row in record["ways"].items():
        ms = sorted(row["ms"])[len(row["ms"]) // 2]
        up = row.get("speed_up")
        gain = "" if up is None else f"{up['time']:.2f}x"
        span = "" if up is None else f"{up['range'][0]:.2f} to {up['range'][1]:.2f}"
        lines.append(f"{way:28} {ms:9.1f} {gain:>9}  {span:16} {row['first_loss']:.6f}")
    return "\n".join([*lines, *filter(None, [busy(record)])])
