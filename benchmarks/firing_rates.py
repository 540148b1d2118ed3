"""Firing rates of a trained network's layers, read from a run, and imposed on a network with random weights.

To impose them, one pass over a batch gives each layer's tdBN the batch's statistics and one beta, the same for all
channels, with which the share of spikes over all timesteps is the given one. So a layer's rate is the trained
network's; how the spikes spread over channels and space is not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from mpd_agl import ops
from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock
from mpd_agl.records import canonical, read_metrics, read_record, reading

HALVINGS = 24


def read_rates(source: Path) -> dict[str, Any]:
    """`{"layers": {name: {"rate": share, ...}}, ...}` from a run folder, such a JSON, or a record of `bench active`."""
    if source.is_dir():
        with reading(source):
            found = _rates_of_run(source)
            canonical(found)  # refuses NaN now; else writing the record would, after the measurement
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
        raise InputError(f"{source} is no JSON. Give a run folder, or the record of an earlier bench active.") from None
    if isinstance(found, dict) and isinstance(found.get("rates"), dict):
        found = found["rates"]
    layers = found.get("layers") if isinstance(found, dict) else None
    if not (isinstance(layers, dict) and layers and all(map(_is_rate, layers.values()))):
        raise InputError(
            f"{source} holds no firing rates. They look like "
            '{"layers": {"stem": {"rate": 0.14}}}, shares from 0 to 1.'
        )
    return dict(found)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_rate(layer: Any) -> bool:
    rate = layer.get("rate") if isinstance(layer, dict) else None
    return isinstance(rate, float | int) and not isinstance(rate, bool) and 0 <= rate <= 1


def _rates_of_run(folder: Path) -> dict[str, Any]:
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


@torch.no_grad()
def impose_rates(net: Network, x: Tensor, wanted: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Set every layer's rate; returns for each layer its rate, its beta and the share of its inputs that are active."""
    blocks = {name: m for name, m in net.named_modules() if isinstance(m, SpikingBlock)}
    for name in blocks:
        if name not in wanted:
            raise InputError(
                f"the rates are another network's: {net.name} has a layer {name}, which they do not name. "
                f"Give a run of {net.name}."
            )
    N = x.shape[0] if x.dim() == 4 else x.shape[1]
    seen: dict[str, dict[str, float]] = {}

    def hook(name: str, block: SpikingBlock) -> Any:
        def set_beta(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            x_SNC = output.view(-1, N, *output.shape[1:])
            seen[name] = {
                "asked": wanted[name],
                **_set_beta(block, x_SNC, net.num_steps, wanted[name]),
                "rate_in": float(torch.count_nonzero(inputs[0])) / inputs[0].numel(),
            }

        return set_beta

    handles = [
        block.synapse.register_forward_hook(hook(name, block)) for name, block in blocks.items() if block.synapse
    ]
    try:
        net.eval()(x)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _set_beta(block: SpikingBlock, x_SNC: Tensor, T: int, wanted: float) -> dict[str, float]:
    """Find beta by halving: the rate grows with it."""
    norm = block.norm
    assert norm is not None
    mean_C, var_C = ops.moments(x_SNC)
    norm.running_mean.copy_(mean_C)
    norm.running_var.copy_(var_C)
    scale_C = norm.weight * (norm.alpha * norm.v_th) * torch.rsqrt(var_C + norm.eps)
    low, high, one_T, beta, rate = -5.0, 5.0, torch.ones(T), 0.0, 0.0
    for _ in range(HALVINGS):
        beta = (low + high) / 2
        beta_C = torch.full_like(mean_C, beta)
        sums_T6 = ops.probe(x_SNC, mean_C, scale_C, beta_C, block.neuron.tau, one_T, v_th=block.neuron.v_th)
        rate = float(sums_T6[:, 0].sum()) / (T * x_SNC[0].numel())
        low, high = (beta, high) if rate < wanted else (low, beta)
    norm.bias.fill_(beta)
    return {"rate": rate, "beta": beta}
