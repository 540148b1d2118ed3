"""Compares a whole ResNet-19 with the authors' published code: one training step, every number.

    python -m tools.authors DIR [-o docs/results/authors.json]

DIR is a checkout of their repository (docs/deviations.md names it); nothing of it is part of this project, and it is
run as it is. Layer by layer, both get our network's input and a random gradient from above; a potential that lies on
the threshold within rounding may fire in one of them, and is counted; one on the edge of the window may have a gradient
in one of them, which shows in the worst tensor and not in the median one. Over the whole network such a spike changes
all that follows, so only a small batch can be compared: logits, loss, running statistics and every gradient of a step.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError
from mpd_agl.models import Network, create_model
from mpd_agl.records import canonical, code, hardware, versions, write_atomic

OUTPUT = Path("docs/results/authors.json")
BATCH, STEPS, SEED, BACKENDS = 4, (1, 2, 4, 6), 0, ("eager", "native")


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkout", type=Path, metavar="DIR")
    p.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FILE", help=f"default {OUTPUT}")
    a = p.parse_args(argv)
    try:
        build = published(a.checkout)
        rows = [layers(build, T, name) for T in STEPS for name in BACKENDS]
        rows += [whole(build, 2, name) for name in BACKENDS]
    except InputError as error:
        sys.exit(f"tools/authors.py: {error}")
    record = {"what": "python -m tools.authors", "batch": BATCH, "seed": SEED, "rows": rows}
    record |= {"code": code(), "hardware": hardware(), "versions": versions()}
    write_atomic(a.output, canonical(record))
    for row in rows:
        print(row)
    print(f"record: {a.output}")


def published(checkout: Path) -> Callable[[int], nn.Module]:
    """Their network, for a number of timesteps."""
    if not (checkout / "models" / "ResNet19.py").is_file():
        raise InputError(f"no models/ResNet19.py in {checkout}. Give a checkout of the authors' repository.")
    sys.path.insert(0, str(checkout))
    sys.argv = sys.argv[:1]  # theirs reads the command line when it is imported
    theirs = importlib.import_module("models.ResNet19")
    return lambda T: theirs.ResNet19(T=T)  # type: ignore[no-any-return]


def places() -> dict[str, tuple[str, str]]:
    """Our blocks, and where theirs have the layer and the neuron."""
    found = {"stem": ("encode.0", "encode.1"), "fc1": ("fc.0", "fc.1")}
    number = 0
    for stage, blocks in ((1, 3), (2, 3), (3, 2)):
        for block in range(1, blocks + 1):
            here, there = f"stage{stage}.block{block}", f"ResNetBlocks.{number}.0"
            found[f"{here}.conv1"] = (f"{there}.conv1", f"{there}.spike1")
            found[f"{here}.conv2"] = (f"{there}.conv2", f"{there}.spike2")
            found[f"{here}.shortcut"] = (f"{there}.downsample.0", f"{there}.downsample.1")
            number += 1
    return found


def their_name(key: str) -> str:
    """The name of one of our tensors in their network."""
    if key.startswith("readout"):
        return f"fc.2.layer.{key.rsplit('.', 1)[1]}"
    block, part, name = key.rsplit(".", 2)
    layer, neuron = places()[block]
    return {"synapse": f"{layer}.layer.{name}", "norm": f"{layer}.bn.{name}", "neuron": f"{neuron}.neuron.w"}[part]


def same_weights(build: Callable[[int], nn.Module], T: int, backend: str) -> tuple[Network, nn.Module]:
    """Our network and theirs."""
    torch.manual_seed(SEED)
    ours: Network = create_model("resnet19", num_classes=10, num_steps=T, method="mpd-agl", backend=backend)
    theirs = build(T)
    parameters = dict(theirs.named_parameters())
    # Their first linear layer has a bias before its norm, which does nothing; the last one has one in some versions.
    with torch.no_grad():
        for bias in (parameters["fc.0.layer.bias"], parameters.get("fc.2.layer.bias")):
            if bias is not None:
                bias.zero_()
        ours.get_parameter("readout.linear.bias").zero_()
        for k, v in ours.named_parameters():
            if ".norm." in k:
                v.add_(0.2 * torch.randn_like(v))  # widths and statistics as in a network that has learnt
    state = {their_name(k): v.clone() for k, v in ours.state_dict().items() if k != "readout.linear.bias"}
    missing, unknown = theirs.load_state_dict(state, strict=False)
    if unknown or set(missing) - {"fc.0.layer.bias", "fc.2.layer.bias"}:
        raise InputError(f"their network has other tensors than expected: {[*missing, *unknown][:4]}.")
    return ours, theirs


def layers(build: Callable[[int], nn.Module], T: int, backend: str) -> dict[str, Any]:
    """Every layer on the input that it has in our network, with a random gradient from above."""
    ours, theirs = same_weights(build, T, backend)
    given: dict[str, Tensor] = {}
    for name in places():
        if name in dict(ours.named_modules()):
            ours.get_submodule(name).register_forward_pre_hook(partial(_given, given, name))
    with torch.no_grad():
        ours(torch.randn(BATCH, 3, 32, 32))
    spikes = other = 0
    distances: dict[str, float] = {}
    for name, input_TN in given.items():
        first, second = places()[name]
        x_TN, theirs_TN = (input_TN.detach().clone().requires_grad_() for _ in range(2))
        out = ours.get_submodule(name)(x_TN, num_steps=T)
        current = theirs.get_submodule(first)(theirs_TN.transpose(0, 1).expand(-1, T, *theirs_TN.shape[2:]))
        there = theirs.get_submodule(second)(current)
        gradient = torch.randn_like(out)
        out.backward(gradient)
        there.backward(gradient.transpose(0, 1))
        spikes += int(out.sum())
        other += int((out.transpose(0, 1) != there).sum())
        mine = {f"{name}.{k}": p.grad for k, p in ours.get_submodule(name).named_parameters()}
        pairs = {k: (g, theirs.get_parameter(their_name(k)).grad) for k, g in mine.items()}
        distances |= apart({f"{name}.input": (x_TN.grad, theirs_TN.grad), **pairs})
    counts = {"layers": len(given), "spikes": spikes, "other_spikes": other, **summary(distances)}
    return {
        "what": "layer by layer",
        "T": T,
        "backend": backend,
        **counts,
    }


def whole(build: Callable[[int], nn.Module], T: int, backend: str) -> dict[str, Any]:
    """One training step of both networks."""
    ours, theirs = same_weights(build, T, backend)
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    out_TNK, out_NTK = ours(x), theirs(x)
    loss, other = F.cross_entropy(out_TNK.mean(0), y), F.cross_entropy(out_NTK.mean(1), y)
    loss.backward()
    other.backward()
    parameters, state = dict(theirs.named_parameters()), theirs.state_dict()
    named = {k: p for k, p in ours.named_parameters() if their_name(k) in parameters}
    pairs = {k: (p.grad, parameters[their_name(k)].grad) for k, p in named.items()}
    running = [float((v - state[their_name(k)]).abs().max()) for k, v in ours.state_dict().items() if ".running_" in k]
    return {
        "what": "the whole network",
        "T": T,
        "backend": backend,
        "logits": float((out_TNK.transpose(0, 1) - out_NTK).detach().abs().max()),
        "loss": abs(float(loss.detach()) - float(other.detach())),
        **summary(apart(pairs)),
        "running": max(running),
    }


def apart(pairs: dict[str, tuple[Tensor | None, Tensor | None]]) -> dict[str, float]:
    """The distance of two gradients over the length of one, by name; a gradient that both lack has none."""
    found = {}
    for name, (a, b) in pairs.items():
        sizes = [0.0 if g is None else float(g.norm()) for g in (a, b)]
        if bool(sizes[0]) != bool(sizes[1]):
            raise InputError(f"{name} has a gradient in one of the networks only.")
        if a is not None and b is not None and sizes[1]:
            found[name] = float((a - b).norm()) / sizes[1]
    return found


def summary(distances: dict[str, float]) -> dict[str, Any]:
    """How far gradients lie apart: the median one and the farthest."""
    worst = max(distances, key=lambda name: distances[name])
    middle = median(distances.values())
    return {"tensors": len(distances), "gradients": middle, "worst": distances[worst], "worst_tensor": worst}


def _given(inputs: dict[str, Tensor], name: str, module: nn.Module, args: Any) -> None:
    inputs[name] = args[0]


if __name__ == "__main__":
    main()
