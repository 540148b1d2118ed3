"""`mpd-agl bench active`: when skipping zeros pays, for single layers and for a whole network; the record of it."""

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from benchmarks import active_layers, active_network
from benchmarks.compare import Note, provenance
from benchmarks.timing import FixedLoop, busy
from benchmarks.workload import Workload
from mpd_agl.errors import InputError
from mpd_agl.ops import native, reuse_pages

WHAT = "mpd-agl bench active"
PARTS = ("table", "inference", "training")
BATCH = {"inference": 32, "training": 16}
QUICK_DIVISOR = 8


def measure(
    workload: Workload,
    *,
    parts: Collection[str],
    batches: dict[str, int],
    rates: dict[str, Any] | None,
    rounds: int,
    quick: bool,
    note: Note,
) -> dict[str, Any]:
    """The record: those of `table`, `inference`, `training` that were asked for, the rates used, provenance.

    `batches` has the batch of each part of a network; `quick` takes the table at an eighth of its batches.
    """
    if why := native.load()[1]:
        raise InputError(f"bench active cannot run: {why}.")
    networks = {
        part: replace(workload, work=work, batch=batches[part])  # type: ignore[arg-type]
        for part, work in (("inference", "infer"), ("training", "train"))
        if part in parts
    }
    if networks and rates is None:
        raise InputError(
            f"a whole network ({', '.join(networks)}) needs firing rates. "
            "Give --rates with a run folder or a JSON of rates."
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    torch.set_num_threads(workload.threads)
    if not workload.fresh_pages:
        reuse_pages()
    facts = {"threads": workload.threads, "rounds": rounds, "simd": native.level(), "quick": quick}
    record: dict[str, Any] = {"what": WHAT, "setting": facts, "rates": rates, **provenance(), "load_before": load}
    loop = FixedLoop(workload.threads)
    # Networks come first: rates that belong to another network are then refused at once.
    for part, network in networks.items():
        assert rates is not None
        note(part)
        wanted = {name: float(layer["rate"]) for name, layer in rates["layers"].items()}
        record[part] = active_network.measure(network, wanted, rounds, loop, note)
    if "table" in parts:
        divisor = QUICK_DIVISOR if quick else 1
        shapes = [(channels, size, max(1, batch // divisor)) for channels, size, batch in active_layers.SHAPES]
        record["table"] = {"cells": active_layers.measure(shapes, active_layers.RATES, rounds, loop, note)}
    record["slowdown"] = loop.slowdowns()
    return record


def text(record: dict[str, Any]) -> str:
    """The record as printed."""
    found = [active_layers.text(record["table"]["cells"])] if "table" in record else []
    found += [active_network.text(record[part]) for part in ("inference", "training") if part in record]
    return "\n\n".join(filter(None, [*found, busy(record)]))
