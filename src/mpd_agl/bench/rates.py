"""Firing rates of a trained network's layers: of a run's monitor data, or of a JSON that holds them."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.records import canonical, read_metrics, read_record, reading


def read_rates(source: Path) -> dict[str, Any]:
    """`{"layers": {name: {"rate": share, ...}}, ...}` of a run folder, a JSON of that form, or a record of `mpd-agl bench events`."""
    if source.is_dir():
        with reading(source):
            found = of_run(source)
            canonical(found)  # refuses NaN, as the record would after the measurement
        return found
    try:
        found = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        raise InputError(
            f"no firing rates at {source}: nothing is there. Give a run folder or a JSON of rates."
        ) from None
    except OSError as error:
        raise InputError(f"the rates {source} cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{source} is no JSON. Give a run folder, or the record of an earlier bench events.") from None
    if isinstance(found, dict) and isinstance(found.get("rates"), dict):
        found = found["rates"]
    layers = found.get("layers") if isinstance(found, dict) else None
    if not (isinstance(layers, dict) and layers and all(map(_is_rate, layers.values()))):
        raise InputError(
            f'{source} holds no firing rates. They look like {{"layers": {{"stem": {{"rate": 0.14}}}}}}, shares from 0 to 1.'
        )
    return dict(found)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_rate(layer: Any) -> bool:
    rate = layer.get("rate") if isinstance(layer, dict) else None
    return isinstance(rate, float | int) and not isinstance(rate, bool) and 0 <= rate <= 1


def of_run(folder: Path) -> dict[str, Any]:
    """Each layer's rate: the mean over the last epoch's snapshots of a monitored run."""
    record = read_record(folder / "record.json")
    snapshots = [e for e in read_metrics(folder / "metrics.jsonl") if e.get("log") == "monitor"]
    if not snapshots:
        raise InputError(f"{folder} was not monitored: it holds no firing rates. Train with --monitor.every 50.")
    last = [s for s in snapshots if s["epoch"] == snapshots[-1]["epoch"]]
    layers = {}
    for name in last[-1]["layers"]:
        seen = [s["layers"][name] for s in last]
        rate_T = [fmean(r) for r in zip(*(s["rate_T"] for s in seen), strict=True)]
        layers[name] = {"rate": fmean(rate_T), "rate_T": rate_T, "rate_in": fmean(s["rate_in"] for s in seen)}
    config = record.config
    run = {
        "name": record.name,
        "model": config["model"],
        "data": config["data"]["name"],
        "method": config["method"],
        "code": record.code,
        "epoch": last[-1]["epoch"],
        "steps": [s["step"] for s in last],
        "final": record.final,
    }
    return {"run": run, "layers": layers}
