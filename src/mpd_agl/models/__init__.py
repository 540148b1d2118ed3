"""The networks of the paper and their iso-architecture ANNs, behind one registry."""

from mpd_agl.models.base import Network, NetworkOptions
from mpd_agl.models.plan import InferencePlan
from mpd_agl.models.registry import MODELS, create_model, list_models, register_model
from mpd_agl.models.weights import load_weights, save_weights

__all__ = [
    "MODELS",
    "InferencePlan",
    "Network",
    "NetworkOptions",
    "create_model",
    "list_models",
    "load_weights",
    "register_model",
    "save_weights",
]
