"""`mpd-agl evaluate RUN`: accuracy, per class, confusion; at any number of timesteps; tdBN folded away if asked."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError

if TYPE_CHECKING:
    from mpd_agl.train.evaluate import Evaluation


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="mpd-agl evaluate", description="Test a run's network on its data set.")
    p.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    p.add_argument(
        "--num-steps", metavar="T,T,...", help="timesteps, fewer or more than trained with (default: as trained)"
    )
    p.add_argument("--weights", default="last", help="last: the result (default); best: best epoch on the test set")
    p.add_argument("--fold", action="store_true", help="fold tdBN into the synapses first")
    p.add_argument(
        "--split", default="test", choices=("test", "train", "validation"), help="which samples (default test)"
    )
    p.add_argument("--data-dir", metavar="DIR", help="folder with the official files, in place of the run's")
    p.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return p


def run(argv: list[str]) -> int:
    """Evaluate and print."""
    a = parser().parse_args(argv)
    counts = parse_steps(a.num_steps)

    from mpd_agl.experiments import build
    from mpd_agl.experiments.trained import evaluation_device, load_run
    from mpd_agl.kernels import reuse_pages
    from mpd_agl.nn import fold
    from mpd_agl.train.evaluate import evaluate

    reuse_pages()
    trained = load_run(a.run, a.weights, lambda text: print(f"mpd-agl: {text}", file=sys.stderr))
    config, device = trained.config, evaluation_device(trained)
    if a.data_dir:
        config = config.model_copy(update={"data": config.data.model_copy(update={"data_dir": a.data_dir})})
    net = (fold(trained.net) if a.fold else trained.net).to(device)
    results: dict[int, Evaluation] = {}
    for num_steps in counts or [config.model.num_steps]:
        data = build.build_data(config, a.split, num_steps=num_steps)
        net.num_steps = num_steps
        results[num_steps] = evaluate(net, build.build_test_loader(config, data), device)
    if a.json:
        out = {
            "run": trained.record.name,
            "weights": trained.weights,
            "split": a.split,
            "folded": a.fold,
            "classes": trained.record.data["classes"],
            "results": [
                {
                    "num_steps": T,
                    "samples": e.count,
                    "accuracy": e.accuracy,
                    "loss": e.loss,
                    "per_class": e.per_class_K,
                    "confusion": e.confusion_KK.tolist(),
                }
                for T, e in results.items()
            ],
        }
        print(json.dumps(out))
        return 0
    folded = ", tdBN folded" if a.fold else ""
    backend = build.backend_that_runs(config, device)
    print(f"{trained.record.name}, {trained.weights}{folded}, {a.split} set of {config.data.name}, backend {backend}")
    for T, e in results.items():
        as_trained = " (as trained)" if config.model.num_steps == T else ""
        print(f"T={T}: accuracy {100 * e.accuracy:.2f} %, loss {e.loss:.4f}, {e.count} samples{as_trained}")
    T = config.model.num_steps if config.model.num_steps in results else next(iter(results))
    _print_tables(results[T], T, trained.record.data["classes"])
    return 0


def parse_steps(text: str | None) -> list[int]:
    """`1,2,4` as numbers."""
    if text is None:
        return []
    parts = text.replace(",", " ").split()
    if not parts or not all(p.isdigit() and 1 <= int(p) <= 1000 for p in parts):
        raise InputError(
            f"--num-steps must be whole numbers from 1 to 1000, got {text!r}. For example: --num-steps 1,2,4."
        )
    return [int(p) for p in parts]


def _print_tables(e: "Evaluation", T: int, classes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

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
