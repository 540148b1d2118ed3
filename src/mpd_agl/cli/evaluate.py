"""`mpd-agl evaluate RUN`: accuracy, per class, confusion, at any number of timesteps; the quick path, early answers."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from mpd_agl import records
from mpd_agl.cli.arguments import FACTORY_HELP, PRETRAINED_HELP, Parser
from mpd_agl.cli.trained import load_trained
from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import fold
from mpd_agl.ops import reuse_pages
from mpd_agl.train import build
from mpd_agl.train.attacks import Pixels, build_attack
from mpd_agl.train.build import backend_that_runs
from mpd_agl.train.early_exit import Early, compare_predictions, early_answers, fast_network, int8_network
from mpd_agl.train.evaluate import Evaluation, evaluate
from mpd_agl.train.load_run import Trained, evaluation_device
from mpd_agl.train.rng import seed_all
from mpd_agl.train.runfolder import check_run, find_run

Number = TypeVar("Number", int, float)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl evaluate",
        usage="mpd-agl evaluate (RUN | --pretrained NAME) [OPTIONS]",
        description="Test a run's network, or a trained one, on its data set.",
    )
    p.add_argument("run", type=find_run, nargs="?", metavar="RUN", help="a run folder, or its name in runs")
    p.add_argument("--pretrained", default="", metavar="NAME", help=PRETRAINED_HELP)
    p.add_argument(
        "--num-steps", metavar="T,T,...", help="timesteps, fewer or more than trained with (default: as trained)"
    )
    p.add_argument("--weights", default="last", help="last: the result (default); best: best epoch on the test set")
    p.add_argument("--fold", action="store_true", help="fold tdBN into the synapses first")
    p.add_argument(
        "--fast", action="store_true", help="the fastest path here; checked against the plain path on a batch"
    )
    p.add_argument(
        "--int8", action="store_true", help="hidden weights as 8-bit whole numbers, as `export --int8` has them"
    )
    p.add_argument(
        "--exit-threshold",
        metavar="P,P,...",
        help="answer as soon as the running mean's best class has this probability; several make a curve",
    )
    p.add_argument(
        "--attack",
        choices=("fgsm", "pgd"),
        help="change every image against the network first, by its surrogate gradient (white box)",
    )
    p.add_argument("--eps", help="with --attack: largest change of a pixel, 0 to 1 (default 8/255)")
    p.add_argument("--attack-steps", type=int, metavar="N", help="with --attack pgd (default 10)")
    p.add_argument(
        "--split", default="test", choices=("test", "train", "validation"), help="which samples (default test)"
    )
    p.add_argument(
        "--data-dir",
        "--data.data-dir",
        metavar="DIR",
        help="folder with the official files, in place of the run's",
    )
    p.add_argument("--factory", default="", metavar="MODULE:FACTORY", help=FACTORY_HELP)
    p.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return p


@dataclass
class Tested:
    """The results, by number of timesteps."""

    how: str
    """How the network was run, in words; empty for the plain path."""
    results: "dict[int, Evaluation]" = field(default_factory=dict)
    differing: dict[int, tuple[int, int]] = field(default_factory=dict)
    """With --fast: predictions that differ from the plain path's, and how many were compared."""
    early: "dict[int, list[Early]]" = field(default_factory=dict)


def run(argv: list[str]) -> int:
    """Evaluate and print."""
    a = parser().parse_args(argv)
    counts = parse_numbers("--num-steps", a.num_steps, int, 1000, "--num-steps 1,2,4")
    thresholds = parse_numbers("--exit-threshold", a.exit_threshold, float, 1, "--exit-threshold 0.8,0.95")
    check_options(a)
    if a.run:
        check_run(a.run)

    reuse_pages()
    trained = load_trained(a.run, pretrained=a.pretrained, weights=a.weights, factory=a.factory)
    tested = _test(a, trained, counts or [trained.num_steps], thresholds)
    if a.json:
        print(json.dumps(_to_dict(a, trained, tested)))
    else:
        _print(a, trained, tested)
    return 0


def _test(a: argparse.Namespace, trained: "Trained", counts: list[int], thresholds: list[float]) -> Tested:
    config, device = trained.config, evaluation_device(trained)
    data, attack = trained.record.data, None
    if a.attack:
        if len(data["shape"]) == 4 or "sample_shape" in data["train"]:
            held = "event frames" if len(data["shape"]) == 4 else "samples as they are"
            raise InputError(
                f"--attack changes pixels from 0 to 1, and {data['name']} holds {held}. Evaluate it without --attack."
            )
        pixels = Pixels(data["mean"], data["std"])
        attack = build_attack(a.attack, pixels, eps=parse_eps(a.eps), steps=a.attack_steps)
    if a.data_dir:
        config = config.model_copy(update={"data": config.data.model_copy(update={"data_dir": a.data_dir})})
    plain: Any = trained.net.to(device)
    net = plain
    how = ""
    if a.fold or a.fast or a.int8 or thresholds:
        plain = net = fold(trained.network) if a.fold else trained.network
        how = "tdBN folded" if a.fold else ""
        if a.fast:
            net, how = fast_network(plain, device)
        if a.int8:
            net, how = int8_network(plain, device)
    if a.attack:
        how = f"{a.attack} of {a.eps}" + (f" in {a.attack_steps} steps" if a.attack == "pgd" else "")
    tested = Tested(how)
    for T in counts:
        loader = build.build_test_loader(config, build.build_data(config, a.split, num_steps=T))
        trained.set_steps(T)
        if plain is not trained.net or net is not plain:
            plain.num_steps = net.num_steps = T
        if a.fast:
            tested.differing[T] = compare_predictions(plain, net, loader, device)
        seed_all(config.seed)  # PGD starts at random
        tested.results[T] = evaluate(net, loader, device, attack=attack)
        if thresholds:
            tested.early[T] = early_answers(fold(trained.network).to(device), loader, T, thresholds, device)
    return tested


def _to_dict(a: argparse.Namespace, trained: "Trained", tested: Tested) -> dict[str, Any]:
    config = trained.config
    return {
        "run": trained.record.name,
        "weights": trained.weights,
        "split": a.split,
        "folded": a.fold or a.fast,
        "fast": a.fast,
        "int8": a.int8,
        "attack": {"name": a.attack, "eps": parse_eps(a.eps), "steps": a.attack_steps} if a.attack else None,
        "config": {"model": config.model.model_dump(mode="json"), "data": config.data.name},
        "threads": torch.get_num_threads(),
        "hardware": records.hardware(),
        "versions": records.versions(),
        "code": records.code(),
        "classes": trained.record.data["classes"],
        "results": [
            {
                "num_steps": T,
                "samples": e.count,
                "accuracy": e.accuracy,
                "loss": e.loss,
                "per_class": e.per_class_K,
                "confusion": e.confusion_KK.tolist(),
                "early": [asdict(row) for row in tested.early.get(T, [])],
            }
            for T, e in tested.results.items()
        ],
    }


def _print(a: argparse.Namespace, trained: "Trained", tested: Tested) -> None:
    config = trained.config
    how = f", {tested.how}" if tested.how else ""
    device = evaluation_device(trained)
    own = None if isinstance(trained.net, Network) else trained.net
    backend = backend_that_runs(config, device) if own is None else own.backend(device)
    print(f"{trained.record.name}, {trained.weights}{how}, {a.split} set of {config.data.name}, backend {backend}")
    for T, e in tested.results.items():
        as_trained = " (as trained)" if trained.num_steps == T else ""
        print(f"T={T}: accuracy {100 * e.accuracy:.2f} %, loss {e.loss:.4f}, {e.count} samples{as_trained}")
        if T in tested.differing:
            differ, count = tested.differing[T]
            print(f"  checked against the plain path: {differ} of {count} predictions differ")
        for row in tested.early.get(T, []):
            shares = ", ".join(f"{100 * s:.0f} %" for s in row.steps_share)
            print(
                f"  answers from {row.threshold:g} on: accuracy {100 * row.accuracy:.2f} %, "
                f"{row.mean_steps:.2f} timesteps (1 to {T}: {shares}), {row.ms_per_image:.2f} ms per image"
            )
    T = trained.num_steps if trained.num_steps in tested.results else next(iter(tested.results))
    _print_tables(tested.results[T], T, trained.record.data["classes"])


def parse_numbers(
    option: str, text: str | None, kind: Callable[[str], Number], most: int, example: str
) -> list[Number]:
    """Numbers with commas between them, as in `1,2,4`; none where the option was not given."""
    try:
        found = [] if text is None else [kind(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if text is not None and not (found and all(0 < value <= most for value in found)):
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option} must be {what} over 0 and up to {most}, got {text!r}. For example: {example}.")
    return found


def parse_eps(text: str) -> float:
    """`8/255` or `0.03` as a number.

    >>> parse_eps("8/255") == 8 / 255, parse_eps("0.03")
    (True, 0.03)
    """
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f"--eps must be a part of a pixel's range over 0 and up to 1, got {text!r}. Use --eps 8/255.")
    return value


def check_options(a: argparse.Namespace) -> None:
    """What must go together."""
    if bool(a.run) == bool(a.pretrained):
        got = "both" if a.run else "neither"
        raise InputError(f"evaluate takes a run folder or --pretrained NAME, got {got}. Give one of them.")
    others = [f"--{n.replace('_', '-')}" for n in ("fold", "fast", "int8", "exit_threshold") if getattr(a, n)]
    if a.attack and others:
        raise InputError(
            f"--attack follows the gradient of the network as it was trained, got {others[0]}. Leave that out.",
            "attack-options",
        )
    if not a.attack and (a.eps, a.attack_steps) != (None, None):
        raise InputError(
            "--eps and --attack-steps belong to an attack, got none. Give --attack pgd too.", "attack-options"
        )
    if a.attack == "fgsm" and a.attack_steps is not None:
        raise InputError(f"fgsm is one step, got --attack-steps {a.attack_steps}. Use --attack pgd.", "attack-options")
    if a.attack_steps is None:
        a.attack_steps = 1 if a.attack == "fgsm" else 10
    a.eps = "8/255" if a.eps is None else a.eps
    parse_eps(a.eps)
    if a.int8 and a.fast:
        raise InputError("--int8 and --fast are two ways to run a network. Give one of them.")


def _print_tables(e: "Evaluation", T: int, classes: list[str]) -> None:
    console, K = Console(), len(classes)
    if K > 20:
        worst = sorted((v, n) for v, n in zip(e.per_class_K, classes, strict=True) if v is not None)
        console.print(
            f"{K} classes, T={T}; the weakest: " + ", ".join(f"{n} {100 * v:.0f} %" for v, n in worst[:10]),
            markup=False,
        )
        console.print("All classes and the confusion matrix: --json.")
        return
    table = Table(title=f"confusion at T={T}: a row is the true class, a column the prediction")
    short = all(len(name) <= 3 for name in classes)
    table.add_column("class")
    table.add_column("right", justify="right", no_wrap=True)
    for k, name in enumerate(classes):
        table.add_column(name if short else str(k), justify="right")
    for k, name in enumerate(classes):
        share = e.per_class_K[k]
        row = e.confusion_KK[k].tolist()
        cells = [f"[bold]{v}[/]" if j == k else (str(v) if v else "·") for j, v in enumerate(row)]
        table.add_row(name if short else f"{k} {name}", "" if share is None else f"{100 * share:.1f} %", *cells)
    console.print(table)
