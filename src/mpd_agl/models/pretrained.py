"""Trained networks by name: a model card (JSON) and weights (safetensors), in the package, in a file or at an address.

    cards/cifar10.json           what it is: data, recipe, seeds, scores, energy, licence, sha256 of the weights
    cards/cifar10.safetensors    synapses as float16 or int8, everything else as it was trained

Nothing here can run code: a card is JSON and its weights are tensors. Weights from an address are asked for by https
alone, kept in the cache folder, and refused where their sha256 is not the card's.
"""

import hashlib
import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.records.files import cache_folder, write_atomic
from mpd_agl.records.progress import progress
from mpd_agl.records.record import reading

SCHEMA = 1
FORMATS = ("float16", "int8")
SCALE = ":scale"
"""Behind the name of an int8 tensor: the tensor that holds its factor per output channel."""
HASH = re.compile("[0-9a-f]{64}")
MOST_BYTES = 2**31
MOST_CARD_BYTES = 2**20
TIMEOUT_S = 20.0
FREE = ("num_steps", "surrogate", "detach_reset", "backend", "conv_impl", "recompute")
"""Options that change no answer of the trained network but its time, T or gradient."""
GONE = {"gamma_start": 1.0, "leak": "two", "start": "rest"}
"""Options that only networks of 0.2 had, and the value of each that a network of today has built in."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a trained network is, and where its weights lie."""

    name: str
    licence: str
    model: str
    """The network's name, as `create_model` takes it."""
    options: Mapping[str, Any]
    """Its `NetworkOptions`, where they differ from the defaults."""
    weights: Mapping[str, Any]
    """`sha256`, `bytes`, `format`, and `file` (beside the card) or `url`."""
    check: Mapping[str, Any]
    """Scores on the test set: of the weights as trained, and as they are stored."""
    record: Mapping[str, Any]
    """The run record, without the folders of the machine that ran it."""
    schema: int = SCHEMA
    folder: Path | None = None
    """Where a card of the user's own lies; None: in the package, or at an address."""

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return list(self.record["data"]["classes"])

    @property
    def mean(self) -> list[float]:
        """Per channel, of pixels from 0 to 1: what the network's input is normalised by, with `std`."""
        return list(self.record["data"]["mean"])

    @property
    def std(self) -> list[float]:
        """Per channel, of pixels from 0 to 1."""
        return list(self.record["data"]["std"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the network's images: height, width, channels."""
        return tuple(self.record["data"]["shape"])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {k: v for k, v in asdict(self).items() if k != "folder"}


def list_pretrained() -> list[str]:
    """Names of the trained networks in the package, for `create_model(..., pretrained=NAME)`.

    >>> isinstance(list_pretrained(), list)
    True
    """
    return sorted(f.name.removesuffix(".json") for f in _box().iterdir() if f.name.endswith(".json"))


def _box() -> Any:
    return files("mpd_agl.models") / "cards"


def pretrained_card(pretrained: str) -> Card:
    """The model card of a trained network: one of the package by its name, a card of your own by its path, or a card at
    an address, as `https://host/card.json#sha256=...`.
    """
    if pretrained in list_pretrained():
        return _read_card((_box() / f"{pretrained}.json").read_bytes(), pretrained)
    if pretrained.startswith(("https:", "http:")):
        url, _, digest = pretrained.partition("#sha256=")
        if not HASH.fullmatch(digest):
            raise InputError(
                f"a card at an address is named with its hash, got {pretrained!r}. "
                "Write https://host/card.json#sha256=HEX, with 64 digits in lower case."
            )
        return _read_card(_fetched(url, digest, MOST_CARD_BYTES, "json"), url)
    if pretrained.endswith(".json"):
        path = Path(pretrained).expanduser()
        try:
            found = _read_card(path.read_bytes(), str(path))
        except OSError as error:
            raise InputError(f"no model card at {path} ({error.strerror}). Give the .json file of a network.") from None
        return Card(**{**found.to_dict(), "folder": path.parent})
    raise unknown_name("pretrained network", pretrained, list_pretrained())


def _read_card(data: bytes, source: str) -> Card:
    """A card of this version whose parts have their types; anyone can edit JSON."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the model card {source} is no JSON ({error}). Get it again.") from None
    known = {f.name for f in fields(Card)} - {"folder"}
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or set(raw) != known:
        raise InputError(
            f"{source} is no model card that this version reads (schema {SCHEMA}). Make one with tools/pretrained.py."
        )
    with reading(source):
        kinds = {"name": str, "licence": str, "model": str} | dict.fromkeys(("options", "weights", "record"), dict)
        for name, kind in kinds.items():
            if not isinstance(raw[name], kind):
                raise TypeError(f"{name} is a {type(raw[name]).__name__}")
        weights, options = raw["weights"], raw["options"]
        if type(weights["bytes"]) is not int or not 0 < weights["bytes"] <= MOST_BYTES:
            raise ValueError(f"weights of {weights['bytes']} bytes")
        if weights["format"] not in FORMATS or not HASH.fullmatch(str(weights["sha256"])):
            raise ValueError("weights without a known format and sha256")
        if not {"classes", "mean", "std", "shape", "name"} <= set(raw["record"]["data"]):
            raise ValueError("no facts about the data")
        # A card that asks for a network of a million channels must not fill the memory.
        for name, value in options.items():
            if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= 65536):
                raise ValueError(f"{name} is {value}")
    return Card(**raw)


def check_options(
    card: Card, model: str, options: Mapping[str, Any], defaults: Mapping[str, Any], fix: str = "Leave {name} out."
) -> dict[str, Any]:
    """The options to build a network with: the card's, and what the user may change; else one sentence."""
    if model != card.model:
        raise InputError(
            f"pretrained {card.name!r} holds weights of {card.model}, got {model!r}. Name the model {card.model}."
        )
    for name, value in options.items():
        own = card.options.get(name, defaults[name])
        if name not in (*FREE, "num_classes") and value != own:
            raise InputError(
                f"pretrained {card.name!r} was trained with {name}={own!r}, got {value!r}. "
                + fix.format(name=name, own=own)
            )
    kept = {name: value for name, value in card.options.items() if name in defaults}
    for name in card.options.keys() - kept.keys():
        if card.options[name] != GONE.get(name):
            raise InputError(
                f"pretrained {card.name!r} was trained with {name}={card.options[name]!r}, which no network has any "
                "more. Use the version of mpd-agl that made the card."
            )
    return {**kept, **options}


def pretrained_state(card: Card) -> dict[str, Tensor]:
    """The network's state as it was stored, in float32."""
    data = weights_of(card)
    try:
        stored = load_tensors(data)
    except (SafetensorError, ValueError, KeyError):
        raise InputError(f"the weights of {card.name!r} are no safetensors file. Make them again.") from None
    return unpack(stored)


def fitting_state(
    card: Card, state: Mapping[str, Tensor], own: Mapping[str, Tensor], num_classes: int
) -> dict[str, Tensor]:
    """A card's state for a network whose state is `own`; the network keeps its readout where the classes are others."""
    fresh = {} if num_classes == len(card.classes) else {k: v for k, v in own.items() if k.startswith("readout.")}
    merged = {**state, **fresh}
    wrong = [k for k in own.keys() | merged.keys() if _shape(own.get(k)) != _shape(merged.get(k))]
    if wrong:
        raise InputError(
            f"the weights of {card.name!r} do not fit this {card.model}: {len(wrong)} tensors are missing, surplus or "
            f"of another shape (first {min(wrong)}). Build it with its card's options, or get weights and card again."
        )
    return merged


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def weights_of(card: Card) -> bytes:
    """The bytes of the weights; their sha256 is the card's, or they are refused."""
    w = card.weights
    if "url" in w:
        return _fetched(str(w["url"]), w["sha256"], w["bytes"], "safetensors")
    name = str(w.get("file"))
    if Path(name).name != name:  # a card's weights lie beside it and nowhere else
        raise InputError(f"the card {card.name!r} names its weights by a path, got {name!r}. Use a plain file name.")
    place = _box() / name if card.folder is None else card.folder / name
    try:
        data: bytes = place.read_bytes()
    except OSError as error:
        raise InputError(f"no weights at {place} ({error.strerror}). Put them beside the card.") from None
    if hashlib.sha256(data).hexdigest() != w["sha256"]:
        raise InputError(f"{place} is not the file that its card names: the sha256 differs. Get it again.")
    return data


def _fetched(url: str, sha256: str, most: int, kind: str) -> bytes:
    """A file from the cache, or from its address and then into the cache."""
    kept = cache_folder() / "pretrained" / f"{sha256}.{kind}"
    if kept.is_file():
        data = kept.read_bytes()
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    data = download(url, most)
    if (got := hashlib.sha256(data).hexdigest()) != sha256:
        raise InputError(
            f"{url} gave another file than was named: its sha256 is {got}, expected {sha256}. It was not kept."
        )
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, data)
    except OSError:  # a cache that cannot be written costs the next download, no more
        pass
    return data


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Follow to https alone."""
        if not newurl.startswith("https://"):
            _not_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _not_https(url: str) -> NoReturn:
    raise InputError(f"weights are fetched by https alone, got {url}. Give an address that starts with https://.")


def download(url: str, most: int) -> bytes:
    """At most so many bytes from an https address."""
    if not url.startswith("https://"):
        _not_https(url)
    request = urllib.request.Request(url, headers={"User-Agent": "mpd-agl"})
    parts, done = [], 0
    try:
        with (
            urllib.request.build_opener(_OnlyHttps).open(request, timeout=TIMEOUT_S) as response,
            progress(url.rpartition("/")[2], None, as_bytes=True) as report,
        ):
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            while block := response.read(1 << 18):
                parts.append(block)
                done += len(block)
                report(done, total)
                if done > most:
                    raise InputError(f"{url} sends more than the {most:,} bytes that were named. It was not kept.")
    except (urllib.error.URLError, OSError, HTTPException, ValueError) as error:
        raise InputError(
            f"cannot get {url} ({getattr(error, 'reason', None) or error}). Try again, or give the path of a card."
        ) from None
    return b"".join(parts)


def pack(state: Mapping[str, Tensor], kind: str) -> bytes:
    """A network's state as a safetensors file: what has two dimensions or more as float16 or int8, vectors as they are.

    Norms, thresholds and decays are few and decide where a neuron fires, so they keep their float32; not so those with
    values per timestep and channel (TAB).
    """
    if kind not in FORMATS:
        raise unknown_name("format of weights", kind, FORMATS)
    stored: dict[str, Tensor] = {}
    for name, value in state.items():
        plain = value.detach().cpu().contiguous().clone()
        if plain.dim() < 2 or not plain.is_floating_point():
            stored[name] = plain
        elif kind == "float16":
            stored[name] = plain.to(torch.float16)
            if not torch.isfinite(stored[name]).all():
                raise InputError(f"{name} holds values over 65504, too large for float16. Use int8.")
        else:
            peak = plain.abs().flatten(1).amax(1).clamp_min(1e-12)
            scale = (peak / 127).float()
            stored[name] = (plain / scale.view(-1, *[1] * (plain.dim() - 1))).round().to(torch.int8)
            stored[name + SCALE] = scale
    return dump_tensors(stored)


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of `pack` in float32."""
    state: dict[str, Tensor] = {}
    for name, value in stored.items():
        if name.endswith(SCALE):
            continue
        if value.dtype == torch.int8:
            if name + SCALE not in stored:
                raise InputError(f"the weights {name} have no scale. Make them again with tools/pretrained.py.")
            state[name] = value.float() * stored[name + SCALE].view(-1, *[1] * (value.dim() - 1))
        else:
            state[name] = value.float() if value.dtype == torch.float16 else value
    bad = [k for k, v in state.items() if v.is_floating_point() and not torch.isfinite(v).all()]
    if bad:
        raise InputError(f"the weights hold NaN or Inf in {len(bad)} tensors (first {bad[0]}). Make them again.")
    return state
