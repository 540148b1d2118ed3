"""Makes a trained network of the package from a finished run: weights, model card, and the page docs/pretrained.md.

    python -m tools.pretrained runs/night cifar10 [--format int8] [--data-dir DIR]
    python -m tools.pretrained --page

The weights are stored as float16 (default) or int8, read again, and scored on the whole test set with those of the
run. Where the accuracy changes by more than `--tolerance` points nothing is written.
"""

import argparse
import hashlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch

from mpd_agl.errors import InputError
from mpd_agl.models import Card, Network, create_model, pretrained
from mpd_agl.records import RunRecord, canonical, read_record, write_atomic
from mpd_agl.train import build
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.load_run import Trained, load_run
from mpd_agl.train.presets import read_preset
from mpd_agl.train.rng import seed_all

ROOT = Path(__file__).parent.parent
CARDS, PAGE = ROOT / "src/mpd_agl/models/cards", ROOT / "docs/pretrained.md"
LIMIT = 2**20
"""Bytes of weights in the package; bigger ones lie at an address."""
PRIVATE = ("source", "data_dir", "origin", "teacher", "weights")
"""What a record says of the folders of the machine that ran it."""


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR")
    p.add_argument("name", nargs="?", metavar="NAME", help="cifar10, cifar100, ...")
    p.add_argument("--format", default="float16", choices=pretrained.FORMATS)
    p.add_argument("--data-dir", default="", help="folder with the official files, in place of the run's")
    p.add_argument("--tolerance", type=float, default=0.3, help="points of accuracy that storing may change (0.3)")
    p.add_argument("--url", default="", help="where the weights will lie, if not in the package")
    p.add_argument("--cards", type=Path, default=CARDS, help="folder of cards (default: the package's)")
    p.add_argument("-o", "--output", type=Path, default=PAGE, metavar="FILE", help="default docs/pretrained.md")
    p.add_argument("--page", action="store_true", help="write the page from the cards, and nothing else")
    a = p.parse_args(argv)
    try:
        if not a.page:
            if not a.run or not a.name:
                raise InputError("give a run folder and a name, or --page.")
            print(make(a))
        write_atomic(a.output, page(a.cards).encode())
        print(f"page: {a.output}")
    except InputError as error:
        sys.exit(f"tools/pretrained.py: {error}")


def make(a: argparse.Namespace) -> str:
    """Write card and weights of a run; what they are, in a line."""
    trained = load_run(a.run, "last", lambda text: print(text, file=sys.stderr))
    record = trained.record
    if record.status != "finished" or record.final is None:
        raise InputError(f"{a.run} is {record.status}, and a card needs a finished run. Resume it first.")
    if record.config["data"].get("holdout"):
        raise InputError(f"{a.run} held samples out, and a card's scores are the test set's. Train without holdout.")
    data = pretrained.pack(trained.network.state_dict(), a.format)
    if len(data) >= LIMIT and not a.url:
        raise InputError(
            f"the weights have {len(data):,} bytes, and the package takes under {LIMIT:,}. Use --format int8, or --url."
        )
    weights = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "format": a.format}
    weights |= {"url": a.url} if a.url else {"file": f"{a.name}.safetensors"}
    net = trained.network
    card = Card(
        name=a.name,
        licence="Apache-2.0",
        model=net.name,
        options=options_of(net),
        weights=weights,
        check={},
        record=plain(shortened(record)),
    )
    a.cards.mkdir(parents=True, exist_ok=True)
    file = a.cards / f"{a.name}.safetensors"
    unchecked = a.cards / f"{a.name}.safetensors.new"
    unchecked.write_bytes(data)
    try:
        checked = Card(**{**card.to_dict(), "folder": a.cards, "weights": {**weights, "file": unchecked.name}})
        checked.weights.pop("url", None)  # type: ignore[attr-defined]
        stored = create_model(card.model, pretrained=checked)
        check = compare(trained, stored, a.data_dir)
        lost = 100 * abs(check["stored"]["accuracy"] - check["trained"]["accuracy"])
        if lost > a.tolerance:
            raise InputError(
                f"storing as {a.format} changes the accuracy by {lost:.2f} points, more than {a.tolerance}. "
                f"{'Use --format float16' if a.format == 'int8' else 'Train the network further'}."
            )
        here, then = check["trained"]["accuracy"], record.final["test_accuracy"]
        if abs(here - then) > 0.002:
            raise InputError(f"the run's weights score {here:.4f} here and {then:.4f} in its record. Check the data.")
        unchecked.replace(file)
    finally:
        unchecked.unlink(missing_ok=True)
    check["before"] = before(record, a.name)
    write_atomic(a.cards / f"{a.name}.json", canonical({**card.to_dict(), "check": check}))
    return (
        f"{file}: {len(data):,} bytes, {100 * check['stored']['accuracy']:.2f} % stored, "
        f"{100 * check['trained']['accuracy']:.2f} % as trained, "
        f"{check['differing']} of {check['samples']} answers differ"
    )


def options_of(net: Network) -> dict[str, Any]:
    """What `create_model` needs; backends and ways to compute are the user's own."""
    given = {k: getattr(v, "name", v) for k, v in vars(net.options).items()}
    return {k: v for k, v in given.items() if k not in ("backend", "conv_impl", "recompute")}


def compare(trained: Trained, stored: Network, data_dir: str) -> dict[str, Any]:
    """The scores of both on the whole test set, and how many answers differ."""
    config = trained.config
    if data_dir:
        config = config.model_copy(update={"data": config.data.model_copy(update={"data_dir": data_dir})})
    config = config.model_copy(update={"data": config.data.model_copy(update={"test_samples": 0})})
    loader = build.build_test_loader(config, build.build_data(config, "test"))
    found: dict[str, Any] = {}
    answers = []
    for name, net in (("trained", trained.network), ("stored", stored)):
        seed_all(config.seed)
        e = evaluate(net, loader, torch.device("cpu"))
        found[name] = {"accuracy": e.accuracy, "loss": e.loss}
        with torch.no_grad():
            answers.append(torch.cat([net(x).mean(0).argmax(1) for x, _ in loader.epoch(0)]))
    differing = int((answers[0] != answers[1]).sum())
    return {**found, "samples": e.count, "differing": differing}


def shortened(record: RunRecord) -> dict[str, Any]:
    """The record without its long parts: energy by layer, choices of convolutions."""
    energy = record.energy and {k: v for k, v in record.energy.items() if k != "layers"}
    return {**record.to_dict(), "convs": None, "energy": energy}


def before(record: RunRecord, name: str) -> list[dict[str, Any]]:
    """What this run's weights started from, first to last: runs with configuration, score and time, or another card.

    A card of the name that is being made is about to be replaced, so it is named by the runs that it came from.
    """
    start = record.config["model"].get("weights", "")
    if not start:
        return []
    if start_card := record.network.get("weights_from"):
        card = pretrained.pretrained_card(start)
        if card.weights["sha256"] != record.network["weights_sha256"]:
            raise InputError(f"the run started from other weights than those of {start!r} today. Train it again.")
        if start_card != name:
            found = {"sha256": card.weights["sha256"], "accuracy": card.check["stored"]["accuracy"]}
            return [{"card": start_card, **found}]
        return [*card.check["before"], _shortened_run(dict(card.record))]
    if not (Path(start) / "record.json").is_file():
        raise InputError(
            f"the run started from {start}, which is no run folder. A card names what its weights come from."
        )
    first = read_record(Path(start) / "record.json")
    return [*before(first, name), _shortened_run(first.to_dict())]


def _shortened_run(record: dict[str, Any]) -> dict[str, Any]:
    """Of a run that came before: what it was and how it ended."""
    found: dict[str, Any] = plain({k: v for k, v in record.items() if k in ("config", "final", "clock", "seeds")})
    return found


def plain(value: Any) -> Any:
    """Without the folders of the machine that ran it; the name of a bundled network stays."""
    if isinstance(value, dict):
        named = {"weights": value["weights"]} if value.get("weights") in pretrained.list_pretrained() else {}
        return {k: plain(v) if k not in PRIVATE else "" for k, v in value.items()} | named
    return [plain(v) for v in value] if isinstance(value, list) else value


def page(folder: Path) -> str:
    """docs/pretrained.md from the cards in a folder."""
    cards = [pretrained.pretrained_card(str(path)) for path in sorted(folder.glob("*.json"))]
    head = [
        "# Trained networks",
        "",
        "`python -m tools.pretrained` writes this page from the model cards in the package.",
        "",
        "```python",
        *([] if cards else ["# not run by the tests: the weights are not there yet"]),
        "from mpd_agl.models import create_model",
        "",
        f'net = create_model("{cards[0].model if cards else "resnet19"}", '
        f'pretrained="{cards[0].name if cards else "cifar10"}")  # ready to answer: evaluation mode',
        "```",
        "",
        "```console",
        f"mpd-agl predict --pretrained {cards[0].name if cards else 'cifar10'} photo.jpg",
        f"mpd-agl evaluate --pretrained {cards[0].name if cards else 'cifar10'} --data.data-dir DIR",
        "```",
        "",
    ]
    if not cards:
        head += paragraph(
            "No weights are in this version yet: the names `cifar10` and `cifar100` are refused with one sentence."
        )
    else:
        head += ["| name | network | T | data | test accuracy, last epoch | bytes |", "|---|---|---|---|---|---|"]
        head += [row(c) for c in cards] + [""]
    for card in cards:
        head += section(card)
    return "\n".join(head + HOW) + "\n"


def row(c: Card) -> str:
    o, data = c.options, c.record["data"]["name"]
    return (
        f"| `{c.name}` | {c.model}, width_mult {o['width_mult']:g} | {o['num_steps']} | {data} "
        f"| {100 * c.check['stored']['accuracy']:.2f} % | {c.weights['bytes']:,} ({c.weights['format']}) |"
    )


def section(c: Card) -> list[str]:
    """One network: data, recipe, seeds, scores, energy, licence."""
    r, stored, full = c.record, c.check["stored"], c.check["trained"]
    train, energy, config = r["data"]["train"], r["energy"]["totals"], r["config"]
    ann, paper, strict = r["energy"]["ann"]["mj"], energy["paper"]["mj"], energy["strict"]["mj"]
    cards = [e for e in c.check["before"] if "card" in e]
    earlier = [e for e in c.check["before"] if "card" not in e]
    hours = sum(run["clock"]["elapsed_s"] for run in (*earlier, r)) / 3600
    starts_from = [f"from {_age(e)}the weights of `{e['card']}` ({100 * e['accuracy']:.2f} %): " for e in cards]
    runs = [e["config"] for e in earlier]
    starts_from += [f"{e['train']['epochs']} epochs at T={e['model']['num_steps']}, then " for e in runs]
    rows = {
        "data": f"{r['data']['name']}, {train['samples']:,} training and {r['data']['test']['samples']:,} test samples",
        "network": f"{c.model}, width_mult {c.options['width_mult']:g}, T={c.options['num_steps']}, "
        f"{r['network']['parameters']:,} parameters",
        "recipe": f"{config['method']}, {''.join(starts_from)}{config['train']['epochs']} epochs, "
        f"batch {config['train']['batch_size']}, {' '.join(config['data']['augment']) or 'no augmentation'}",
        "optimizer": f"{config['optim']['name']} {config['optim']['lr']:g}, {config['optim']['schedule']}, "
        f"weight decay {config['optim']['weight_decay']:g}",
        "seed": str(r["seeds"]["run"]),
        "last epoch": f"{100 * r['final']['test_accuracy']:.2f} % (best on the test set: "
        f"{100 * r['best_on_test']['test_accuracy']:.2f} %, not the result)",
        "as stored": f"{100 * stored['accuracy']:.2f} % against {100 * full['accuracy']:.2f} % as trained; "
        f"{c.check['differing']} of {c.check['samples']:,} answers differ",
        "energy": f"{paper:.4f} mJ by the paper's count, {strict:.4f} mJ strict, its ANN {ann:.4f} mJ",
        "time": f"{hours:.1f} h on {r['hardware']['cpu']}, {r['hardware']['threads']} threads",
        "code": f"commit {(r['code']['commit'] or 'unknown')[:9]}, torch {r['versions']['torch']}",
        "licence": f"{c.licence}; the data have terms of their own",
        "sha256": f"`{c.weights['sha256']}`",
    }
    lines = [f"## {c.name}", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items()), ""]
    steps = c.options["num_steps"]
    starts = [e["card"] for e in cards]
    commands = []
    for place, each in enumerate([*runs, config], 1):
        last = place > len(runs)
        weights = f" --model.weights {starts[-1]}" if starts else ""
        commands.append(differences(each, steps) + weights + ("" if last else f" --name part{place}"))
        starts.append(f"runs/part{place}")
    if not differences(config, steps):
        return lines
    return lines + paragraph("Made by " + ", then ".join(f"`mpd-agl train {text}`" for text in commands) + ".")


def _age(start: dict[str, Any]) -> str:
    """Says so where a card that a network began with holds other weights today."""
    try:
        same = pretrained.pretrained_card(start["card"]).weights["sha256"] == start["sha256"]
    except InputError:
        return ""
    return "" if same else "an earlier version of "


def differences(config: dict[str, Any], num_steps: int) -> str:
    """The command's options: the preset of the network at this T, and what differs from it."""
    preset = f"{config['data']['name']}-{config['model']['name']}"
    try:
        base = read_preset(preset)
    except InputError:
        return ""
    from mpd_agl.options import flatten
    from mpd_agl.train.resolve import resolve

    usual = flatten(resolve(base).model_dump(mode="json"))
    skip = ("data.data_dir", "train.threads", "train.workers", "checkpoint.", "track.", "monitor.")
    changed = {
        k: v for k, v in flatten(config).items() if k in usual and usual[k] != v and not k.startswith(skip) and v != ""
    }
    words = " ".join(f"--{k} {' '.join(v) if isinstance(v, list) else v}" for k, v in sorted(changed.items()))
    return f"--preset {preset} {words}".strip()


def paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False), ""]


HOW = [
    "## How they are kept",
    "",
    *paragraph(
        "Weights are safetensors files: tensors and nothing that could run. Synapses are float16, or int8 with a "
        "factor per output channel; norms, decays and biases stay float32. The card next to them is JSON and holds the "
        "sha256 of the weights and the whole run record. Both are checked each time they are read. A rounded weight "
        "moves a spike that lay at the threshold, and those behind it: single answers change, the accuracy hardly."
    ),
    "## Of your own",
    "",
    *paragraph(
        "`python -m tools.pretrained RUN_DIR NAME` makes card and weights from a finished run, scores the stored "
        "weights on the whole test set, and refuses where they lose more than 0.3 points. `--cards DIR` writes them "
        'elsewhere; `create_model(model, pretrained="DIR/NAME.json")`, `predict --pretrained DIR/NAME.json` and '
        "`evaluate` take the card's path."
    ),
    *paragraph(
        "Bigger weights lie at an address: `--url https://host/NAME.safetensors` puts it into the card. A card can "
        "lie there too, as `https://host/NAME.json#sha256=HEX`. Only https is asked, a file with another sha256 is "
        "refused, and what was fetched stays in the cache folder (`mpd-agl info` names it)."
    ),
    *paragraph(
        "`create_model(model, pretrained=NAME, num_classes=37)` keeps everything but the readout, which is initialised "
        "again: for training on classes of your own. So does `mpd-agl train --model.weights NAME`, which continues "
        "from such weights on any data set of colour images."
    )[:-1],
]


if __name__ == "__main__":
    main()
