"""One group of measurements in one tree: python -m tools.rebuilt.worker GROUP FOLDER old|new [RANK].

PYTHONPATH names the tree. `old` draws inputs and initial weights and writes them to FOLDER; `new` reads them.
Results are JSON on the last line of stdout.
"""

import hashlib
import importlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tools.rebuilt import shim
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, RANKS = 50, 2
NETWORKS: dict[str, dict[str, Any]] = {
    "demo": {"name": "cnn8", "width_mult": 0.25, "num_steps": 2, "in_channels": 1, "image_size": 28},
    "resnet19": {"name": "resnet19", "width_mult": 0.125, "num_steps": 2, "in_channels": 3, "image_size": 16},
    "vggsnn": {"name": "vggsnn", "width_mult": 0.25, "num_steps": 4, "in_channels": 2, "image_size": 48},
}
BATCH = {"demo": 20, "resnet19": 16, "vggsnn": 4}
METHODS = ("mpd-agl", "stbp-tdbn", "mpd-gain")
BACKENDS = ("eager", "native")
TREE = ""
FOLDER = Path()


def kept(name: str, make: Callable[[], Any]) -> Any:
    """What `make` returned in the old tree, in both."""
    file = FOLDER / f"{name}.pt"
    if TREE == "old":
        torch.save(make(), file)
    return torch.load(file)


def hexes(values: list[float] | Tensor) -> list[str]:
    """Numbers to the last bit."""
    return [float(v).hex() for v in (values.detach().flatten().tolist() if isinstance(values, Tensor) else values)]


def digest(tensors: dict[str, Tensor]) -> str:
    """One hash of many tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def network(key: str, options: dict[str, Any]) -> nn.Module:
    """A network with 0.2's initial weights. Training mode."""
    torch.manual_seed(0)
    net = shim.network(**options)
    weights = kept(key, lambda: copied(net))
    net.load_state_dict(weights, strict=True)
    return net.train()


def batches(group: str) -> tuple[Tensor, Tensor]:
    """Inputs of all steps: digits for the demo, noisy patterns of ten classes, event frames of 0, 1 and 2."""
    g = torch.Generator().manual_seed(1)
    options, N = NETWORKS[group], BATCH[group]
    y = torch.randint(0, 10, (STEPS, N), generator=g)
    size = options["image_size"]
    if group == "demo":
        data = importlib.import_module("mpd_agl.data").load_dataset("mnist5k", "train")
        x, labels = torch.as_tensor(data.x).float() / 255, torch.as_tensor(data.y).long()
        index = torch.randint(0, len(labels), (STEPS, N), generator=g)
        return x[index].reshape(STEPS, N, 1, 28, 28) * 3 - 0.4, labels[index]
    if group == "vggsnn":
        rates = torch.rand(10, 4, 2, size, size, generator=g) ** 4
        return torch.poisson(rates[y], generator=g).transpose(1, 2).clamp(max=2), y  # T before N, as networks take it
    pattern = torch.randn(10, 3, size, size, generator=g)
    return pattern[y] + torch.randn(STEPS, N, 3, size, size, generator=g), y


def copied(net: nn.Module) -> dict[str, Tensor]:
    """The state dict as it is now."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def gradients(net: nn.Module, x: Tensor, y: Tensor, rank: int | None) -> float:
    """The loss of a batch, its gradients left in the network; a rank takes its 7 or 9 rows, and all add up."""
    share = 1.0
    if rank is not None:
        rows = slice(0, 7) if rank == 0 else slice(7, None)
        share = len(y[rows]) / len(y)
        x, y = x[rows], y[rows]
    net.zero_grad()
    loss = share * F.cross_entropy(net(x).mean(0), y)
    loss.backward()
    loss = loss.detach()
    if rank is not None:
        for p in [loss, *(p.grad for p in net.parameters() if p.grad is not None)]:
            dist.all_reduce(p)
    return loss.item()


def train(key: str, net: nn.Module, x: Tensor, y: Tensor, rank: int | None = None) -> dict[str, Any]:
    """Losses of SGD, and a hash of all weights and statistics at the end.

    A curve carries a rounded bit on until a spike moves, and then apart. So `anchored` are losses and sizes of
    gradients of every fifth batch with the weights that 0.2 had there: what rounding does to one step alone.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses, weights, anchored = [], [], []
    for k in range(STEPS):
        if k % 5 == 0:
            weights.append(copied(net))
        losses.append(gradients(net, x[k], y[k], rank))
        optimizer.step()
    end = digest(net.state_dict())
    for k, kept_k in enumerate(kept(f"{key}-anchors", partial(list, weights))):
        net.load_state_dict(kept_k, strict=True)
        anchored.append(gradients(net, x[5 * k], y[5 * k], rank))
        anchored += [p.grad.norm().item() for p in net.parameters() if p.grad is not None]
    return {"values": hexes(losses), "end": end, "anchored": hexes(anchored)}


def curves(group: str) -> Iterator[tuple[str, Any]]:
    """50 steps of each method with each backend."""
    x, y = kept(f"{group}-data", lambda: batches(group))
    cases = [(m, b, False) for m, b in product(METHODS, BACKENDS)]
    cases += [("mpd-agl", b, True) for b in BACKENDS] if group == "resnet19" else []
    for method, backend, recompute in cases:
        options = {**NETWORKS[group], "method": method, "backend": backend, "conv_impl": "dense"}
        net = network(f"{group}-{method}", {**options, "recompute": recompute})
        name = f"{group} {method} {backend}{' recompute' if recompute else ''}"
        yield name, train(name, net, x, y)


def state() -> Iterator[tuple[str, Any]]:
    """A sequence of 6 steps cut into 2 and 4, the state handed on: spikes, every gradient, running statistics."""
    nn_ = importlib.import_module("mpd_agl.nn")
    for method, backend in product(METHODS[:2], BACKENDS):
        torch.manual_seed(0)
        conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        given = {"method": method, "backend": backend, "conv_impl": "dense"}
        block = nn_.SpikingBlock(conv, **shim.block_options(given)).train()
        drawn = torch.randn(6, 5, 3, 9, 9), torch.randn(6, 5, 8, 9, 9), copied(block)
        x, g, weights = kept(f"state-{method}", partial(tuple, drawn))
        block.load_state_dict(weights, strict=True)
        x = x.clone().requires_grad_()
        first, carried = shim.step(block, x[:2], None)
        second, end = shim.step(block, x[2:], carried)
        spikes = torch.cat([first, second])
        (spikes * g).sum().backward()
        grads = [p.grad for p in [x, *block.parameters()] if p.grad is not None]
        yield (
            f"state {method} {backend}",
            {
                "values": hexes([float(spikes.sum()), *(float(d.double().norm()) for d in grads)]),
                "end": digest({str(i): d for i, d in enumerate([spikes, end, *grads, *block.buffers()])}),
            },
        )


def ranks(rank: int) -> Iterator[tuple[str, Any]]:
    """Two processes with 7 and 9 rows of each batch of 16."""
    place = f"file://{FOLDER / f'store-{TREE}'}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
    x, y = kept(f"rank{rank}-data", lambda: batches("resnet19"))  # each rank draws the same
    for method, backend in product(METHODS[:2], BACKENDS):
        options = {**NETWORKS["resnet19"], "method": method, "backend": backend, "conv_impl": "dense"}
        net = network(f"rank{rank}-{method}", options)
        shim.share(net)
        yield f"two processes {method} {backend}", train(f"rank{rank}-{method}-{backend}", net, x, y, rank)


def presets() -> Iterator[tuple[str, Any]]:
    """Each preset's network at 1/16 of its channels, trained statistics, and the bundled networks: logits."""
    from safetensors.torch import load_file, save_file

    old = importlib.import_module("mpd_agl")
    folder, found = Path(old.__file__ or "").parent / "presets", FOLDER / "presets.json"
    if TREE == "old":
        tables = {file.stem: tomllib.loads(file.read_text()) for file in sorted(folder.glob("*.toml"))}
        found.write_text(json.dumps({name: preset_options(table) for name, table in tables.items()}))
    for name, options in json.loads(found.read_text()).items():
        torch.manual_seed(0)
        net = shim.network(**options)
        T, size, C = options["num_steps"], options["image_size"], options["in_channels"]
        file = FOLDER / f"{name}.safetensors"
        x = torch.randn((T, 2, C, size, size) if C == 2 else (2, C, size, size))
        if TREE == "old":
            for p in net.parameters():
                if p.dim() == 1:
                    p.data.add_(0.3 * torch.rand_like(p))
            for module in net.modules():
                if hasattr(module, "momentum"):
                    module.momentum = 0.9  # statistics of these inputs after few passes, so that layers fire
            for _ in range(3):
                net.train()(x)  # running statistics, and learnt beginnings
            save_file({n: v.contiguous() for n, v in copied(net).items()} | {"oracle.x": x}, file)
        stored = load_file(file)
        x = stored.pop("oracle.x")
        net.load_state_dict(stored, strict=True)
        with torch.no_grad():
            yield name, {"values": hexes(net.eval()(x)), "classes": options["num_classes"]}
    pretrained = importlib.import_module("mpd_agl.models")
    for name in ("cifar10", "cifar100"):
        card = pretrained.pretrained_card(name)
        net = pretrained.create_model(card.model, pretrained=name)
        x = kept(f"card-{name}", lambda: torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2)))
        with torch.no_grad():
            yield f"trained {name}", {"values": hexes(net(x)), "classes": len(card.classes)}


def preset_options(table: dict[str, Any]) -> dict[str, Any]:
    """A preset's network as options of `create_model`, small, with plain convolutions."""
    model, name = dict(table["model"]), table["data"]["name"]
    known = {"cifar10": (3, 32, 10), "cifar100": (3, 32, 100), "mnist5k": (1, 28, 10), "tinyimagenet": (3, 64, 200)}
    C, size, K = known.get(name, (2, table["data"].get("frame_size", 48), 10))
    if model.get("surrogate") == "auto":
        del model["surrogate"]
    model |= {"method": table.get("method", "mpd-agl"), "in_channels": C, "image_size": size, "num_classes": K}
    return {"num_steps": 2, **model, "width_mult": 1 / 16, "backend": "eager", "conv_impl": "dense"}


def names() -> Iterator[tuple[str, Any]]:
    """Public names: 0.2's own list, and whether each resolves in the new tree."""
    file = FOLDER / "names.json"
    if TREE == "old":
        imported = {"Any", "PackageNotFoundError", "import_module", "version"}
        found = {"": [n for n in dir(importlib.import_module("mpd_agl")) if n[0] != "_" and n not in imported]}
        found |= {p: list(importlib.import_module(f"mpd_agl.{p}").__all__) for p in shim.MOVED if p}
        found |= {registry: list(shim.find(registry, place)) for registry, place in shim.REGISTRIES.items()}
        file.write_text(json.dumps(found))
    with suppress(ModuleNotFoundError):
        importlib.import_module("mpd_agl.rivals")  # registers its own
    for place, listed in json.loads(file.read_text()).items():
        known = shim.find(place, shim.REGISTRIES[place]) if place in shim.REGISTRIES else None
        for name in listed:
            yield f"{place}.{name}".lstrip("."), name in known if known else shim.find(name, place) is not None


def main() -> None:
    """Run one group."""
    global TREE, FOLDER
    group, FOLDER, TREE, *rest = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    shim.NEW = TREE == "new"
    torch.set_num_threads(1)
    made = curves(group) if group in NETWORKS else ranks(int(rest[0])) if group == "ranks" else globals()[group]()
    results = dict(made)
    print(json.dumps({"from": importlib.import_module("mpd_agl").__file__, "results": results}), flush=True)
    os._exit(0)  # a thread that gloo leaves behind may abort an interpreter that ends


if __name__ == "__main__":
    main()
