"""State dicts of other programs as the state of a network of this package.

Layers are paired in the order in which they were registered, kind by kind (synapse, norm, neuron), because programs
differ in the names of their layers but not in the order. Every shape must fit; nothing is guessed.

| source | weight of the norm | decay | fires at |
|---|---|---|---|
| `mpd-agl` | gamma | `tau = sigmoid(rho)` | `v >= v_th` |
| `authors` (their published code) | gamma | `tau = sigmoid(w)`, so `rho = w` | `v >= v_th` |
| `spikingjelly` | `gamma * alpha * v_th` | `tau = 1 - sigmoid(w)`, so `rho = -w` | `v >= v_th` |

SpikingJelly's row holds for `decay_input=False` and `v_reset=0`. A missing bias is zero: the authors' last layer has
none. A bias in front of a norm moves into the norm's running mean: `(x + b) - mean = x - (mean - b)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.export.ptfile import read_tensors
from mpd_agl.models import Network
from mpd_agl.nn import TdBatchNorm

SOURCES = ("mpd-agl", "authors", "spikingjelly")
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KINDS = ("synapse", "norm", "neuron")
CHECK = "Check --model, --width-mult and --num-classes."


@dataclass(frozen=True)
class Imported:
    """Which layer went where, as pairs of names (theirs, ours), and the tensors that have no meaning here."""

    pairs: list[tuple[str, str]]
    unused: list[str]


def import_weights(net: Network, path: str | Path, source: str) -> Imported:
    """Load the tensors of a `.pt` file into the network; if they do not fit, raise one sentence and change nothing."""
    if source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    path = Path(path)
    theirs = read_tensors(path)
    own = net.state_dict()
    if source == "mpd-agl":
        state, report = theirs, Imported([(k, k) for k in theirs], [])
    else:
        state, report = _convert(net, theirs, source, path)
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    differ = [k for k in own if k in state and state[k].shape != own[k].shape]
    if missing or surplus or differ:
        parts = [f"{len(missing)} tensors missing (first {missing[0]})"] if missing else []
        parts += [f"{len(surplus)} unexpected (first {surplus[0][:80]})"] if surplus else []
        if differ:
            k = differ[0]
            parts += [f"{len(differ)} of another shape (first {k}: {tuple(state[k].shape)}, not {tuple(own[k].shape)})"]
        raise InputError(f"{path} does not fit this {net.name}: {'; '.join(parts)}. {CHECK}")
    bad = [k for k in own if state[k].is_complex() or not torch.isfinite(state[k]).all()]
    if bad:
        raise InputError(f"{path} holds NaN, Inf or complex numbers in {len(bad)} tensors (first {bad[0]}).")
    net.load_state_dict({k: state[k].to(own[k].dtype) for k in own})
    return report


def _convert(net: Network, theirs: Mapping[str, Tensor], source: str, path: Path) -> tuple[dict[str, Tensor], Imported]:
    own, state = net.state_dict(), dict[str, Tensor]()
    their_layers, unused = layers(theirs, "w")
    our_layers, _ = layers(own, "rho")
    for kind in KINDS:
        found, wanted = len(their_layers[kind]), len(our_layers[kind])
        if found != wanted:
            hint = " A network without learnt decays is --method agr or stbp-tdbn." if kind == "neuron" else ""
            raise InputError(
                f"{path} does not fit this {net.name}: it has {found} layers of kind {kind}, "
                f"and the network has {wanted}. Check --model.{hint}"
            )
    pairs = {kind: list(zip(their_layers[kind], our_layers[kind], strict=True)) for kind in KINDS}

    def take(a: str, b: str) -> None:
        """Compare the shapes before anything is computed: a view of a few bytes can look like terabytes."""
        if a in theirs and b in own:
            if theirs[a].shape != own[b].shape:
                raise InputError(
                    f"{path} does not fit this {net.name}: {a} has shape {tuple(theirs[a].shape)}, "
                    f"and {b} {tuple(own[b].shape)}. {CHECK}"
                )
            state[b] = theirs[a]

    for a, b in pairs["norm"]:
        for name in NORM:
            take(f"{a}.{name}", f"{b}.{name}")
        norm = net.get_submodule(b)
        if source == "spikingjelly" and isinstance(norm, TdBatchNorm) and f"{b}.weight" in state:
            state[f"{b}.weight"] = state[f"{b}.weight"] / (norm.alpha * norm.v_th)
    for a, b in pairs["neuron"]:
        state[f"{b}.rho"] = (theirs[f"{a}.w"] if source == "authors" else -theirs[f"{a}.w"]).reshape(())
    for a, b in pairs["synapse"]:
        take(f"{a}.weight", f"{b}.weight")
        mean = b.removesuffix(".synapse") + ".norm.running_mean"
        if f"{b}.bias" in own:
            state[f"{b}.bias"] = torch.zeros_like(own[f"{b}.bias"])
            take(f"{a}.bias", f"{b}.bias")
        elif f"{a}.bias" in theirs and mean in state:
            bias = theirs[f"{a}.bias"]
            if bias.shape != state[mean].shape:
                raise InputError(f"{path}: the bias {a}.bias does not fit the norm behind it. Check --model.")
            state[mean] = state[mean] - bias
    # A fixed decay is an option of the network, so it stays as it is.
    state |= {k: v for k, v in own.items() if k.endswith(".neuron.tau")}
    return state, Imported([pair for kind in KINDS for pair in pairs[kind]], unused)


def layers(state: Mapping[str, Tensor], decay: str) -> tuple[dict[str, list[str]], list[str]]:
    """The layers' names by kind, in order, and the tensors that belong to none; `decay` names a learnt decay."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    rest = []
    for key, tensor in state.items():
        layer, _, name = key.rpartition(".")
        if name == "weight" and tensor.dim() >= 2:
            found["synapse"].append(layer)
        elif name == "running_mean":
            found["norm"].append(layer)
        elif name == decay and tensor.numel() == 1:
            found["neuron"].append(layer)
        elif name not in (*NORM, "bias"):
            rest.append(key)
    return found, rest
