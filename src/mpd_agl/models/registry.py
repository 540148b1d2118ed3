"""The one registry of networks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import resnet, vgg
from mpd_agl.models.base import Network
from mpd_agl.models.options import NetworkOptions
from mpd_agl.models.pretrained import Card, check_options, fitting_state, pretrained_card, pretrained_state
from mpd_agl.nn import METHODS, get_method
from mpd_agl.options import extended, sentences
from mpd_agl.plugins import load_plugins


class Entry(NamedTuple):
    """A network's builder, the defaults of the data it was made for, a line about it, and its options."""

    build: Callable[[Any], Network]
    defaults: dict[str, Any]
    about: str
    options: type[NetworkOptions] = NetworkOptions


_CIFAR: dict[str, Any] = {"num_classes": 10, "num_steps": 2, "in_channels": 3, "image_size": 32}
_DVS: dict[str, Any] = {"num_classes": 10, "num_steps": 10, "in_channels": 2, "image_size": 48}
_CIFAR_T4: dict[str, Any] = _CIFAR | {"num_steps": 4}
_TINY: dict[str, Any] = {"num_classes": 200, "num_steps": 4, "in_channels": 3, "image_size": 64}

MODELS: dict[str, Entry] = {
    "resnet19": Entry(resnet.resnet19, _CIFAR, "the paper's for CIFAR-10/100 (3-3-2, SEW-ADD)", resnet.ResNetOptions),
    "resnet18": Entry(resnet.resnet18, _CIFAR, "2-2-2-2 basic blocks", resnet.ResNetOptions),
    "sew-resnet18": Entry(resnet.sew_resnet18, _CIFAR_T4, "spikes added behind neurons (Fang et al. 2021)"),
    "sew-resnet34": Entry(resnet.sew_resnet34, _CIFAR_T4, "the same, 3-4-6-3"),
    "vggsnn": Entry(vgg.vggsnn, _DVS, "the paper's network for CIFAR10-DVS"),
    "vgg11": Entry(vgg.vgg11, _CIFAR, "8 convolutions, 4096-4096 FC"),
    "vgg13": Entry(vgg.vgg13, _TINY, "the paper's network for Tiny-ImageNet"),
    "vgg16": Entry(vgg.vgg16, _CIFAR, "13 convolutions, 4096-4096 FC"),
    "plain": Entry(vgg.plain, _CIFAR, "as many 16-channel layers as asked for, no shortcuts", vgg.PlainOptions),
    "cnn8": Entry(vgg.cnn8, _CIFAR, "an 8-layer vanilla SNN (Figure 2)"),
}


def register_model(
    name: str,
    build: Callable[[Any], Network],
    *,
    defaults: dict[str, Any] | None = None,
    about: str = "",
    options: type[NetworkOptions] = NetworkOptions,
) -> None:
    """Let `create_model` and every command take a network of your own by its name; `build(options)` makes it.

    `options` is a subclass of `NetworkOptions` with what this network alone can be asked for, `defaults` are values
    where they differ from that class's, for example `{"in_channels": 2}`.
    """
    entry = Entry(build, defaults or {}, about, options)
    if MODELS.setdefault(name, entry) != entry:
        raise InputError(f"there is a network {name!r} already. Give yours another name.", "taken-name")


def get_model(name: str) -> Entry:
    """The network of that name."""
    if name not in MODELS:
        load_plugins()
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def list_models() -> list[str]:
    """Names that `create_model` takes.

    >>> "resnet19" in list_models()
    True
    """
    return sorted(MODELS)


def network_options(name: str, values: Mapping[str, Any]) -> NetworkOptions:
    """The options of a network: its own, and those of its method; mistakes are one `InputError`."""
    entry = get_model(name)
    method = get_method(values.get("method", "mpd-agl"))
    table = extended(entry.options, method.options)
    for option, value in values.items():
        if option not in table.model_fields:
            raise _unknown_option(option, value, name, method.name, table)
    try:
        made: NetworkOptions = table(**(entry.defaults | dict(values)))
        return made
    except ValidationError as error:
        raise InputError(" ".join(sentences(error, table)), "bad-option") from None


def _unknown_option(option: str, value: Any, name: str, method: str, table: type[NetworkOptions]) -> InputError:
    """The error for an option that this network with this method does not have: which ones have it."""
    networks = [n for n, e in MODELS.items() if option in e.options.model_fields]
    methods = [n for n, m in METHODS.items() if option in m.options.model_fields]
    if not networks and not methods:
        return unknown_name("model option", option, table.model_fields)
    kind, own, having = ("network", name, networks) if networks else ("method", method, methods)
    return InputError(
        f"{option} is an option of the {kind}s {', '.join(having)}, got {option}={value!r} with {own}. Leave it out.",
        "option-of-others",
    )


def create_model(name: str, *, pretrained: str | Card = "", **options: Any) -> Network:
    """Build a network from `NetworkOptions`: `num_classes`, `num_steps`, `method`, `in_channels`, `image_size`,
    `width_mult` and the rest.

    What is not given is the default of the data that the network was made for.

    `pretrained` gives it trained weights, their own options, and evaluation mode: a name of `list_pretrained()`, the
    path of a model card, or `https://host/card.json#sha256=...`. With another `num_classes` the readout is new.

    >>> net = create_model("resnet19", num_classes=10, num_steps=2, method="mpd-agl", width_mult=0.125)
    >>> import torch
    >>> net(torch.randn(4, 3, 32, 32)).shape
    torch.Size([2, 4, 10])
    """
    if not pretrained:
        return get_model(name).build(network_options(name, options))
    card = pretrained_card(pretrained) if isinstance(pretrained, str) else pretrained
    build = get_model(name).build
    settings = network_options(name, check_options(card, name, options, dict(network_options(name, {}))))
    state = pretrained_state(card)
    with torch.device("meta"):  # shapes alone: a card may ask for a network that no memory holds
        fitting_state(card, state, build(settings).state_dict(), settings.num_classes)
    net = build(settings)
    net.load_state_dict(fitting_state(card, state, net.state_dict(), settings.num_classes))
    return net.eval()
