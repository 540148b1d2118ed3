"""The networks of the paper and their iso-architecture ANNs, behind one registry."""

from mpd_agl.models.base import Network
from mpd_agl.models.options import NetworkOptions
from mpd_agl.models.plan import InferencePlan
from mpd_agl.models.pretrained import Card, list_pretrained, pretrained_card
from mpd_agl.models.registry import MODELS, create_model, list_models, register_model
from mpd_agl.models.weights import load_weights, save_weights

__all__ = [
    "MODELS",
    "Card",
    "InferencePlan",
    "Network",
    "NetworkOptions",
    "create_model",
    "list_models",
    "list_pretrained",
    "load_weights",
    "pretrained_card",
    "register_model",
    "save_weights",
]
