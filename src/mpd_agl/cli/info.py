"""`mpd-agl info`: versions, the machine, backends that work here and why others do not, and what can be chosen."""

import argparse
import json
from typing import Any

import torch

from mpd_agl import records
from mpd_agl.cli.arguments import Parser
from mpd_agl.data.registry import DATASETS
from mpd_agl.data.sources import cache_root
from mpd_agl.models import MODELS, Card, list_pretrained, pretrained_card
from mpd_agl.nn import METHODS
from mpd_agl.ops import backends_here
from mpd_agl.train.presets import list_presets


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="mpd-agl info", description="What is installed and what works here.")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def run(argv: list[str]) -> int:
    """Look and print."""
    a = parser().parse_args(argv)

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts: dict[str, Any] = {
        "versions": records.versions(),
        "code": records.code(),
        "hardware": {**records.hardware(), "threads": torch.get_num_threads(), "gpus": gpus},
        "backends": {
            f"{name} ({device})": why
            for device in ("cpu", *(("cuda",) if gpus else ()))
            for name, why in backends_here(device).items()
        },
        "cache": str(cache_root()),
        "presets": list_presets(),
        "methods": {m.name: m.about for m in METHODS.values()},
        "models": {name: entry.about for name, entry in MODELS.items()},
        "pretrained": {name: described(pretrained_card(name)) for name in list_pretrained()},
        "data": {name: entry.title for name, entry in DATASETS.items()},
    }
    if a.json:
        print(json.dumps(facts, indent=1))
        return 0
    h = facts["hardware"]
    print("versions  " + ", ".join(f"{n} {v}" for n, v in facts["versions"].items()))
    print(f"machine   {h['cpu']}, {h['cores']} cores, {h['memory_gb']} GB, {', '.join(gpus) or 'no GPU'}")
    print(f"cache     {facts['cache']}")
    for name, rows in (
        ("backends", {n: f"no: {why}" if why else "works" for n, why in facts["backends"].items()}),
        *((k, facts[k]) for k in ("presets", "methods", "models", "pretrained", "data")),
    ):
        print(f"\n{name}")
        print("\n".join(f"  {n:24} {text}" for n, text in rows.items()))
    return 0


def described(card: "Card") -> str:
    """A trained network in a line."""
    options = {**card.options}
    return (
        f"{card.model}, width_mult {options.get('width_mult', 1.0):g}, T={options.get('num_steps', 2)}, "
        f"{100 * card.check['stored']['accuracy']:.2f} % on {card.record['data']['name']}"
    )
