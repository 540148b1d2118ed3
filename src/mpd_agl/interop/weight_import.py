"""State dicts of other programs as the state of a network of this package.

Layers are paired in the order in which they were registered, kind by kind (synapses, norms, neurons): names differ between programs, the
order of the layers does not. Every shape must fit; nothing is guessed.

| source | tdBN's weight | decay | fires at |
|---|---|---|---|
| `mpd-agl` | gamma | `tau = sigmoid(rho)` | `v >= v_th` |
| `authors` (their published code) | gamma | `tau = sigmoid(w)`, so `rho = w` | `v > v_th` |
| `spikingjelly` | `gamma * alpha * v_th` | `tau = 1 - sigmoid(w)`, so `rho = -w` (with `decay_input=False`, `v_reset=0`) | `v >= v_th` |

A bias of synapses before a norm moves into its running mean: `(x + b) - mean = x - (mean - b)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.interop.ptfile import read_tensors
from mpd_agl.models import Network
from mpd_agl.nn import TdBatchNorm

SOURCES = ("mpd-agl", "authors", "spikingjelly")
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KINDS = ("synapses", "norm", "neuron")


@dataclass(frozen=True)
class Imported:
    """What went where: pairs of a foreign and an own layer's name, and tensors that were left out because they have no meaning here."""

    pairs: list[tuple[str, str]]
    unused: list[str]


def import_weights(net: Network, path: str | Path, source: str) -> Imported:
    """Lay the tensors of a `.pt` file into the network; one sentence and no change where they do not fit."""
    if source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    path = Path(path)
    foreign = read_tensors(path)
    own = net.state_dict()
    if source == "mpd-agl":
        state, report = foreign, Imported([(k, k) for k in foreign], [])
    else:
        state, report = _convert(net, foreign, source, path)
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    differ = [k for k in own if k in state and state[k].shape != own[k].shape]
    if missing or surplus or differ:
        parts = [f"{len(missing)} tensors missing (first {missing[0]})"] if missing else []
        parts += [f"{len(surplus)} unexpected (first {surplus[0][:80]})"] if surplus else []
        if differ:
            k = differ[0]
            parts += [f"{len(differ)} of another shape (first {k}: {tuple(state[k].shape)}, not {tuple(own[k].shape)})"]
        raise InputError(
            f"{path} does not fit this {net.name}: {'; '.join(parts)}. Check --model, --width-mult and --num-classes."
        )
    bad = [k for k in own if state[k].is_complex() or not torch.isfinite(state[k]).all()]
    if bad:
        raise InputError(f"{path} holds NaN, Inf or complex numbers in {len(bad)} tensors (first {bad[0]}).")
    net.load_state_dict({k: state[k].to(own[k].dtype) for k in own})
    return report


def _convert(
    net: Network, foreign: Mapping[str, Tensor], source: str, path: Path
) -> tuple[dict[str, Tensor], Imported]:
    theirs, unused = layers(foreign, "w")
    ours, _ = layers(net.state_dict(), "rho")
    for kind in KINDS:
        if len(theirs[kind]) != len(ours[kind]):
            hint = " A network without learnt decays is --method agr or stbp-tdbn." if kind == "neuron" else ""
            raise InputError(
                f"{path} does not fit this {net.name}: {len(theirs[kind])} layers of kind {kind}, and the network has {len(ours[kind])}. "
                f"Check --model.{hint}"
            )
    pairs = [(a, b) for kind in KINDS for a, b in zip(theirs[kind], ours[kind], strict=True)]
    own, state = net.state_dict(), dict[str, Tensor]()

    def take(a: str, b: str) -> None:
        """Shapes are compared before anything is computed: a view of a few bytes can look like terabytes."""
        if a in foreign and b in own:
            if foreign[a].shape != own[b].shape:
                raise InputError(
                    f"{path} does not fit this {net.name}: {a} has shape {tuple(foreign[a].shape)}, and {b} {tuple(own[b].shape)}. "
                    "Check --model, --width-mult and --num-classes."
                )
            state[b] = foreign[a]

    for a, b in zip(theirs["synapses"], ours["synapses"], strict=True):
        take(f"{a}.weight", f"{b}.weight")
        take(f"{a}.bias", f"{b}.bias")
    for a, b in zip(theirs["norm"], ours["norm"], strict=True):
        for name in NORM:
            take(f"{a}.{name}", f"{b}.{name}")
        module = net.get_submodule(b)
        if source == "spikingjelly" and isinstance(module, TdBatchNorm) and f"{b}.weight" in state:
            state[f"{b}.weight"] = state[f"{b}.weight"] / (module.alpha * module.v_th)
    for a, b in zip(theirs["neuron"], ours["neuron"], strict=True):
        state[f"{b}.rho"] = (foreign[f"{a}.w"] if source == "authors" else -foreign[f"{a}.w"]).reshape(())
    _move_biases(foreign, theirs, ours, state)
    state |= {
        k: v for k, v in own.items() if k.endswith(".neuron.tau")
    }  # where it is fixed, it is the network's option
    return state, Imported(pairs, unused)


def _move_biases(
    foreign: Mapping[str, Tensor], theirs: dict[str, list[str]], ours: dict[str, list[str]], state: dict[str, Tensor]
) -> None:
    """Biases of synapses that ours do not have go into the running mean of the norm behind them."""
    for a, b in zip(theirs["synapses"], ours["synapses"], strict=True):
        norm = b.removesuffix(".synapse") + ".norm"
        if f"{a}.bias" in foreign and f"{b}.bias" not in state and f"{norm}.running_mean" in state:
            bias, mean = foreign[f"{a}.bias"], state[f"{norm}.running_mean"]
            if bias.shape != mean.shape:
                raise InputError(f"the bias {a}.bias does not fit the norm behind it. Check --model.")
            state[f"{norm}.running_mean"] = mean - bias


def layers(state: Mapping[str, Tensor], decay: str) -> tuple[dict[str, list[str]], list[str]]:
    """Names of the layers by kind, in order, and of the tensors that belong to none; `decay` is a learnt decay's name."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    rest = []
    for key, tensor in state.items():
        layer, _, name = key.rpartition(".")
        if name == "weight" and tensor.dim() >= 2:
            found["synapses"].append(layer)
        elif name == "running_mean":
            found["norm"].append(layer)
        elif name == decay and tensor.numel() == 1:
            found["neuron"].append(layer)
        elif name not in (*NORM, "bias"):
            rest.append(key)
    return found, rest
