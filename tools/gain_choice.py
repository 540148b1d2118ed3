"""The held-out runs behind the constants of `mpd-gain` (docs/gain.md), and their record.

    python -m tools.gain_choice runs/gain-choice --data-dir DIR [--only far]     # trains what is missing
    python -m tools.gain_choice runs/gain-choice --draw                          # writes the record from what is there

Each trial is a run of the protocol of docs/evidence.md whose training samples are split: 800 digits, or 5,000 CIFAR-10
images, are held out and scored; the test set is not touched. A trial may put other constants into the rule: the share
that a layer keeps, what is left behind the chain, the growth that a chain may have, the distance of the threshold up
to which the height follows the spikes.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from experiments.evidence import variant
from experiments.scales import config_at
from torch import Tensor

from experiments import stress
from mpd_agl import core
from mpd_agl.core import mpd
from mpd_agl.errors import InputError
from mpd_agl.nn import width
from mpd_agl.records import canonical, read_record, reading, write_atomic
from mpd_agl.train.config import RunConfig
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import flatten, nest, resolve
from mpd_agl.train.training import start

OUT = Path("docs/results/gain-choice.json")
HELD_OUT = {"digits": 800, "cifar10": 5000}
FOLLOWED = 8.0
"""Deviations up to which the height follows the spikes in the older trials: as far as the rule's table goes."""


@dataclass(frozen=True)
class Trial:
    """One run: `share`, `end` and `growth` replace the rule's own constants where they are given.

    `far` is the distance from which on the height does not follow the spikes, in deviations: none in the trials of the
    share, which are older than it. `height` multiplies the rule's height; 0 stands for unit area, whatever the moments
    say.
    """

    name: str
    network: str
    data: str
    method: str = "mpd-gain"
    share: float | None = None
    end: float | None = None
    growth: float | None = None
    far: float | None = None
    height: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def config(self, seed: int, data_dir: str) -> RunConfig:
        """The protocol's run at its usual place, with samples held out."""
        found = variant(self.method, self.network, self.data, {}, self.fields)
        config = config_at(found, stress.STUDY, "cpu", seed, {"train.threads": 1, "data.data_dir": data_dir})
        own = {
            "data.holdout": HELD_OUT[self.data],
            "data.test_samples": 0,
            "data.train_samples": 0 if self.data == "digits" else 10_000,
            "monitor.every": 0,
        }
        return resolve(nest(flatten(config.model_dump(mode="json")) | own))

    @contextmanager
    def constants(self) -> Iterator[None]:
        """The rule with this trial's constants."""

        share_of, gain_of = mpd.chain_share, mpd.matched_gain

        def height_of(*args: Any, **options: Any) -> Tensor:
            gain_T = gain_of(*args, **options)
            return torch.ones_like(gain_T) if self.height == 0 else gain_T * (1 if self.height is None else self.height)

        def kept_share(layers: float) -> float:
            return share_of(layers) if self.share is None else self.share

        far = FOLLOWED if self.far is None else self.far
        own = {"END_SHARE": self.end, "CHAIN_GROWTH": self.growth, "FAR_OUT": far}
        width._made_chain_table.cache_clear()
        try:
            with (
                mock.patch.multiple(mpd, chain_share=kept_share, **{k: v for k, v in own.items() if v is not None}),
                mock.patch.multiple(core, chain_share=kept_share, matched_gain=height_of),
            ):
                yield
        finally:
            width._made_chain_table.cache_clear()


def _trials() -> list[tuple[Trial, tuple[int, ...]]]:
    """Every trial with its seeds."""
    out = []
    for data in HELD_OUT:
        out += [
            (Trial("share 0.72", "cnn8", data, share=0.7197), (10,)),
            (Trial("share 0.48", "cnn8", data, share=mpd.EQ7_SHARE), (10,)),
            (Trial("share 0.48, no bound", "cnn8", data, share=mpd.EQ7_SHARE, growth=1e9), (10,)),
            (Trial("share 0.35", "cnn8", data, share=0.35), (10,)),
            (Trial("MPD-AGL", "cnn8", data, "mpd-agl"), (10,)),
            (Trial("fixed width 0.5", "cnn8", data, "stbp-tdbn", fields={"model.kappa": 0.5}), (10,)),
        ]
    fast, rectangular = {"optim.lr": 0.2}, {"model.surrogate": "rectangular"}
    free: dict[str, Any] = {"share": mpd.EQ7_SHARE, "growth": 1e9}
    unit: dict[str, Any] = {"share": 0.25, "growth": 1e9, "height": 0, "fields": rectangular}
    out += [
        (Trial("share 0.48, height x 1.25, no bound", "cnn8", "cifar10", **free, height=1.25), (10,)),
        (Trial("share 0.48, rectangular, no bound", "cnn8", "cifar10", **free, fields=rectangular), (10,)),
        (Trial("share 0.25, rectangular, unit area, no bound", "cnn8", "cifar10", **unit), (10,)),
        (Trial("share 0.48, lr 0.2", "cnn8", "cifar10", share=mpd.EQ7_SHARE, fields=fast), (10,)),
        (Trial("MPD-AGL, lr 0.2", "cnn8", "cifar10", "mpd-agl", fields=fast), (10,)),
        (Trial("fixed width 0.5, lr 0.2", "cnn8", "cifar10", "stbp-tdbn", fields={**fast, "model.kappa": 0.5}), (10,)),
    ]
    for share in (0.25, 0.35, mpd.EQ7_SHARE, 0.6):
        out.append((Trial(f"share {share:.2f}", "resnet19", "cifar10", share=share, fields={"train.epochs": 3}), (10,)))
    for depth in (16, 24, 32):
        for end in (0.1, 0.02, 0.005, 0.001):
            seeds = (10, 11) if depth > 16 and end > 0.001 else (10,)
            trial = Trial(f"{depth} layers, end {end:g}", "plain", "digits", end=end, fields={"model.depth": depth})
            out.append((trial, seeds))
    for end in (0.1, 0.005):
        out.append((Trial(f"16 layers, end {end:g}", "plain", "cifar10", end=end, fields={"model.depth": 16}), (10,)))
    return out + _trials_of_the_distance()


def _trials_of_the_distance() -> list[tuple[Trial, tuple[int, ...]]]:
    """Where layers start nearly silent, where chains are long, and where neither is so."""
    faint = {"model.gamma_start": 0.3}
    out = [
        (Trial("gamma 0.3, MPD-AGL", "cnn8", "digits", "mpd-agl", fields=faint), (10, 11)),
        (Trial("gamma 0.3, followed", "cnn8", "digits", fields=faint), (10, 11)),
    ]
    for far in (2.5, 2.0, 1.5, 1.0):
        out.append((Trial(f"gamma 0.3, far {far:g}", "cnn8", "digits", far=far, fields=faint), (10, 11)))
    for far in (2.0, 1.5, 1.0):
        for depth in (24, 32):
            trial = Trial(f"{depth} layers, far {far:g}", "plain", "digits", far=far, fields={"model.depth": depth})
            out.append((trial, (10, 11)))
    for far in (2.0, 1.0):
        out.append((Trial(f"far {far:g}", "cnn8", "cifar10", far=far), (10,)))
        out.append((Trial(f"far {far:g}", "resnet19", "cifar10", far=far, fields={"train.epochs": 3}), (10,)))
    return out


TRIALS = _trials()


def folder_of(runs: Path, trial: Trial, seed: int) -> Path:
    """Where a trial's run lies."""
    return runs / f"{trial.network}-{trial.data}-{trial.name.replace(', ', '-').replace(' ', '-')}-s{seed}"


def train(trial: Trial, seed: int, folder: Path, data_dir: str) -> bool:
    """Train a trial whose run is not there, and write into its folder what it put into the rule; whether it was."""
    if (folder / "record.json").is_file():
        return False
    with trial.constants():
        start(trial.config(seed, data_dir), folder, Display())
    write_atomic(folder / "trial.json", canonical(made_with(trial)))
    return True


def made_with(trial: Trial) -> dict[str, Any]:
    """A trial with the constants of the rule in force: no configuration holds them."""
    with trial.constants():
        rule = {"end": mpd.END_SHARE, "growth": mpd.CHAIN_GROWTH, "far": mpd.FAR_OUT, "eq7": mpd.EQ7_SHARE}
    return {**asdict(trial), "rule": rule}


def told(trial: Trial, seed: int, folder: Path) -> dict[str, Any]:
    """What the record keeps of a run; refuses one of another configuration or of other constants."""
    record = read_record(folder / "record.json")
    if record.final is None:
        raise InputError(f"{folder} is {record.status}. Remove it, and train it again.")
    before, wanted = (flatten(c.model_dump(mode="json")) for c in (resolve(record.config), trial.config(seed, "")))
    other = [k for k in wanted if before[k] != wanted[k] and k != "data.data_dir"]
    note = folder / "trial.json"
    with reading(note):
        put_in = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
        other += [k for k, v in made_with(trial).items() if put_in.get(k) != v]
    if other:
        raise InputError(f"{folder} holds another run ({', '.join(other)} differ). Remove it, and train it again.")
    kept = {k: v for k, v in asdict(trial).items() if v is not None and v != {}}
    return {
        **kept,
        "seed": seed,
        "held_out_accuracy": record.final["test_accuracy"],
        "train_loss": round(record.final["train_loss"], 4),
        "code": record.code,
        "started": record.clock["started"],
        "cpu": record.hardware["cpu"],
        "simd": record.hardware["simd"],
        "torch": record.versions["torch"],
    }


def main(argv: list[str] | None = None) -> int:
    """Train what is missing, then write what there is."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", type=Path)
    p.add_argument("--data-dir", default="")
    p.add_argument("--only", default="", help="the trials whose name has this in it, as cnn8 or far")
    p.add_argument("--draw", action="store_true", help="train nothing")
    p.add_argument("-o", "--out", type=Path, default=OUT)
    a = p.parse_args(argv)
    wanted = [(t, s) for t, seeds in TRIALS for s in seeds if a.only in folder_of(a.runs, t, s).name]
    try:
        if not wanted:
            raise InputError(f"no trial's name has {a.only!r} in it. Use cnn8, resnet19, plain or far.")
        for trial, seed in () if a.draw else wanted:
            folder = folder_of(a.runs, trial, seed)
            if train(trial, seed, folder, a.data_dir):
                print(json.dumps(told(trial, seed, folder)), flush=True)
        places = ((t, s, folder_of(a.runs, t, s)) for t, seeds in TRIALS for s in seeds)
        rows = [told(t, s, folder) for t, s, folder in places if (folder / "record.json").is_file()]
        if len(rows) < sum(len(seeds) for _, seeds in TRIALS) and a.out == OUT:
            raise InputError(f"{len(rows)} trials are there, and {OUT} holds all of them. Train the rest, or name -o.")
        write_atomic(a.out, canonical({"what": "tools.gain_choice", "trials": rows}))
    except InputError as error:
        print(f"gain_choice: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gain_choice: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    print(f"{a.out}: {len(rows)} of {sum(len(seeds) for _, seeds in TRIALS)} trials")
    return 0


if __name__ == "__main__":
    sys.exit(main())
