"""From a configuration to what its steps minimise: teachers are read from their runs, taps found in the network."""

import hashlib

import torch
from torch import Tensor, nn

from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.models import Card, Network, load_weights, pretrained_card
from mpd_agl.models.pretrained import check_options, fitting_state, pretrained_state
from mpd_agl.nn import AnnBlock, Readout, SpikingBlock
from mpd_agl.nn.block import out_features
from mpd_agl.train.attacks import Pixels, evaluation_mode
from mpd_agl.train.config import RunConfig
from mpd_agl.train.losses import build_loss
from mpd_agl.train.objective import Distill, LocalTandem, Objective, Robust, ShortcutHeads
from mpd_agl.train.runfolder import find_run


def build_objective(config: RunConfig, net: nn.Module, data: ArraySet, device: torch.device) -> Objective | None:
    """What `loss.name` asks for; None where the loss of the output is all."""
    c, loss = config.loss, build_loss(config.loss)
    if c.name in ("ce", "tet"):
        return None
    if c.name == "robust":
        if data.x.ndim == 5 or data.sample_shape is not None:
            held = "event frames" if data.x.ndim == 5 else "samples as they are"
            raise InputError(f"loss robust changes pixels from 0 to 1, and {data.name} holds {held}. Train on images.")
        return Robust(
            loss, Pixels(data.mean, data.std), eps=c.robust_eps, step=c.robust_step, weight=c.robust_weight
        ).to(device)
    if c.name == "distill":
        teacher, facts = read_teacher(config, net, data)
        teacher.to(device)
        return Distill(loss, teacher, share=c.distill_share, temperature=c.distill_temperature, facts=facts)
    if not isinstance(net, Network) or config.model.ann:
        raise InputError(f"loss {c.name} needs a spiking network of mpd-agl, got {config.model.name}. Use loss ce.")
    if c.name == "shortcut-heads":
        ends = stage_ends(net)
        return ShortcutHeads(loss, ends, net.options.num_classes, share=c.head_share).to(device)
    teacher, facts = read_teacher(config, net, data)
    last = next(n for n, m in net.named_modules() if isinstance(m, Readout))
    names = _tandem(config, net, teacher, last)
    return LocalTandem(loss, teacher.to(device), names, last, weight=c.ltl_weight, facts=facts)


def _tandem(config: RunConfig, net: Network, teacher: nn.Module, last: str) -> list[str]:
    """The layers that loss ltl compares; refuses what it would compare wrongly, or leave untrained."""
    own = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
    theirs = {n: m for n, m in teacher.named_modules() if isinstance(m, AnnBlock)}
    wrong = set(own) ^ set(theirs)
    wrong |= {n for n in set(own) & set(theirs) if _channels(own[n].synapse) != _channels(theirs[n].synapse)}
    if wrong:
        raise InputError(
            f"loss ltl compares layer by layer, and {min(wrong)} of {config.model.name} and of its teacher differ. "
            "Train a teacher of the same network: --model.ann."
        )
    if any(getattr(m.neuron, "scaled", False) for m in own.values()):
        raise InputError(
            f"loss ltl compares firing rates, and the neurons of method {config.method!r} give v_th where they fire. "
            "Use another method."
        )
    trained = tuple(f"{name}." for name in (*own, last))
    if loose := [name for name, _ in net.named_parameters() if not name.startswith(trained)]:
        raise InputError(
            f"loss ltl trains each layer by its own error, and {loose[0]} stands between layers and would not learn. "
            "Use another loss, or a network of plain layers (--model.attention none)."
        )
    return list(own)


def _channels(synapse: nn.Module | None) -> int | None:
    return None if synapse is None else out_features(synapse)


def read_teacher(config: RunConfig, net: nn.Module, data: ArraySet) -> tuple[nn.Module, dict[str, str]]:
    """The ANN of a finished run, and what a record says of it."""
    from mpd_agl.train.load_run import load_run

    name, path = config.loss.name, find_run(config.loss.teacher)
    if not config.loss.teacher:
        raise InputError(
            f"loss {name} learns from a teacher, got none. Train the ANN of the same network "
            "(mpd-agl train ... --model.ann --loss.name ce) and give its run: --loss.teacher RUN."
        )
    trained = load_run(path, "last", lambda text: None)
    if not trained.config.model.ann:
        raise InputError(f"the teacher of loss {name} is an ANN, got the spiking run {path}. Train one by --model.ann.")
    shape, classes = trained.record.data["shape"], trained.record.data["classes"]
    if [*shape[-3:]] != [*data.x.shape[-3:]] or list(classes) != list(data.classes):
        raise InputError(
            f"the teacher {path} learnt {trained.record.data['name']} ({len(classes)} classes, {shape[-3:]}), and the "
            f"run has {data.name}. Train a teacher on the same data."
        )
    state = trained.net.state_dict()
    digest = hashlib.sha256(b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in state.values()))
    return trained.net, {"teacher": trained.record.name, "teacher_sha256": digest.hexdigest()}


def stage_ends(net: Network) -> dict[str, int]:
    """The last spiking layer of every map size but the smallest, in order, with its channels."""
    o, by_size = net.options, dict[int, tuple[str, int]]()
    handles = [
        m.register_forward_hook(
            lambda m, i, out, n=name: by_size.update({out.shape[-1]: (n, out.shape[2])}) if out.dim() == 5 else None
        )
        for name, m in net.named_modules()
        if isinstance(m, SpikingBlock)
    ]
    place = next(net.parameters()).device
    try:
        with torch.no_grad(), evaluation_mode(net):
            net(torch.zeros(1, o.in_channels, o.image_size, o.image_size, device=place))
    finally:
        for handle in handles:
            handle.remove()
    ends = dict(by_size[size] for size in sorted(by_size, reverse=True)[:-1])
    if not ends:
        raise InputError(f"loss shortcut-heads needs layers of two map sizes, and {net.name} has one. Use loss ce.")
    return ends


TRAINING_ONLY = ("method", "kappa", "leak", "gamma_start", "init", "image_size")
"""Options that a run may change on trained weights, beside those that change no answer."""


def start_from(config: RunConfig, net: nn.Module) -> dict[str, str]:
    """Put the weights that `model.weights` names into a network; what a record says of them."""
    if not config.model.weights:
        return {}
    path = find_run(config.model.weights)
    if path.suffix == ".json" or (not path.exists() and path.suffix != ".safetensors"):
        return _start_from_card(pretrained_card(config.model.weights), net)
    file = path / "model.safetensors" if path.is_dir() else path
    load_weights(net, file)
    return {"weights_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def _start_from_card(card: Card, net: nn.Module) -> dict[str, str]:
    net.load_state_dict(state_from_card(card, net))
    return {"weights_from": card.name, "weights_sha256": card.weights["sha256"]}


def state_from_card(card: Card, net: nn.Module) -> dict[str, Tensor]:
    """A trained network's weights for `net`; the readout stays as it was drawn where the classes are others."""
    if not isinstance(net, Network):
        raise InputError(f"model.weights {card.name!r} holds weights of {card.model}. Use --model.name {card.model}.")
    options = {k: v for k, v in vars(net.options).items() if k not in TRAINING_ONLY}
    check_options(card, net.name, options, options, fix="Use --model.{name} {own}.")
    return fitting_state(card, pretrained_state(card), net.state_dict(), net.options.num_classes)
