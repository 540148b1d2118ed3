"""`mpd-agl bench events`: when skipping zeros pays, alone and in a whole network; the record of it."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from mpd_agl.bench import active_layers, active_network
from mpd_agl.bench.compare import Note, provenance
from mpd_agl.bench.contenders import setting_of
from mpd_agl.bench.setting import Setting
from mpd_agl.errors import InputError
from mpd_agl.kernels import native, reuse_pages

WHAT = "mpd-agl bench events"
PARTS = ("table", "inference", "training")
BATCH = {"inference": 32, "training": 16}
QUICK_DIVISOR = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured: the parts, the network's setting with each part's batch, the rounds."""

    parts: Collection[str]
    setting: Setting
    batches: dict[str, int]
    rounds: int = 7
    quick: bool = False
    """The table at an eighth of the batches."""


def measure(plan: Plan, rates: dict[str, Any] | None, note: Note) -> dict[str, Any]:
    """The record: `table`, `inference`, `training` as asked for, the rates used, provenance."""
    if why := native.load()[1]:
        raise InputError(f"bench events cannot run: {why}.")
    settings = {
        part: setting_of(plan.setting, work=work, batch=plan.batches[part])
        for part, work in (("inference", "infer"), ("training", "train"))
        if part in plan.parts
    }
    if settings and rates is None:
        raise InputError(
            f"a whole network ({', '.join(settings)}) needs firing rates. Give --rates with a run folder or a JSON of rates."
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    torch.set_num_threads(plan.setting.threads)
    if not plan.setting.fresh_pages:
        reuse_pages()
    record: dict[str, Any] = {"what": WHAT}
    facts = {"threads": plan.setting.threads, "rounds": plan.rounds, "simd": native.level(), "quick": plan.quick}
    record |= {"setting": facts, "rates": rates, **provenance(), "load_before": load}
    for part, setting in settings.items():  # first: rates of another network are told at once
        assert rates is not None
        note(part)
        wanted = {name: float(layer["rate"]) for name, layer in rates["layers"].items()}
        record[part] = active_network.measure(setting, wanted, plan.rounds, note)
    if "table" in plan.parts:
        divisor = QUICK_DIVISOR if plan.quick else 1
        shapes = [(channels, size, max(1, batch // divisor)) for channels, size, batch in active_layers.SHAPES]
        record["table"] = {"cells": active_layers.measure(shapes, active_layers.RATES, plan.rounds, note)}
    return record


def text(record: dict[str, Any]) -> str:
    """The record as printed."""
    found = [active_layers.text(record["table"]["cells"])] if "table" in record else []
    found += [active_network.text(record[part]) for part in ("inference", "training") if part in record]
    if (record["load_before"] or 0) > 0.7:
        found.append(
            f"The machine was busy (load {record['load_before']:.1f} before the start): times are not to be trusted."
        )
    return "\n\n".join(found)
