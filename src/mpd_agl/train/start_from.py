"""The weights that a run starts from in place of random ones."""

import hashlib

from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models import Card, Network, load_weights, pretrained_card
from mpd_agl.models.pretrained import check_options, fitting_state, pretrained_state
from mpd_agl.train.config import RunConfig
from mpd_agl.train.runfolder import find_run

TRAINING_ONLY = ("method", "kappa", "init", "image_size")
"""Options that a run may change on trained weights, besides those that change no answer."""


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
    options = {k: v for k, v in dict(net.options).items() if k not in TRAINING_ONLY}
    check_options(card, net.name, options, dict(net.options), fix="Use --model.{name} {own}.")
    return fitting_state(card, pretrained_state(card), net.state_dict(), net.options.num_classes)
