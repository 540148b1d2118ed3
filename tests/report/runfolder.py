"""A run folder written by hand: numbers with a meaning, no training."""

import json
import math
from itertools import pairwise

LAYERS = ("stem", "conv2", "conv3")
T, V_TH, BINS = 3, 0.5, 64
LOW, HIGH = -2.0, 3.0


def normal_counts(mean, std, total=10_000):
    def below(v):
        return 0.5 * (1 + math.erf((v - mean) / std / math.sqrt(2)))

    edges = [LOW + (HIGH - LOW) * b / BINS for b in range(BINS + 1)]
    cumulated = [0.0, *map(below, edges), 1.0]
    return [round(total * (b - a)) for a, b in pairwise(cumulated)]


def layer(i, step, detail=True):
    gamma, beta, tau = 1 - 0.002 * step * (i + 1) / 10, 0.01 * i, 0.2
    std = [gamma * V_TH] + [math.sqrt(1 + tau**2) * gamma * V_TH] * (T - 1)
    mean = [beta] + [(1 + tau) * beta] * (T - 1)
    return {
        "rate_T": [0.1 + 0.01 * i + 0.001 * t for t in range(T)],
        "available_T": [0.45 - 0.05 * i - 0.001 * t for t in range(T)],
        "kappa_T": [2 * s for s in std],
        "mean_T": mean,
        "var_T": [s * s for s in std],
        "predicted_mean_T": mean,
        "predicted_var_T": [s * s for s in std],
        "exact_mean_T": mean,
        "exact_var_T": [1.1 * s * s for s in std],
        "input_mean": beta,
        "input_var": std[0] ** 2,
        "rate_in": 0.2,
        "tau": tau,
        "gamma_bar": gamma,
        "gamma_rms": gamma,
        "beta_bar": beta,
        "detail": {
            "potential": {
                "low": LOW,
                "high": HIGH,
                "count_TB": [normal_counts(m, s) for m, s in zip(mean, std, strict=True)],
                "samples": 7,
            },
            "gamma_C": [gamma - 0.1, gamma + 0.1],
            "beta_C": [beta, beta],
        }
        if detail
        else None,
    }


def epoch(n, steps=10):
    return {
        "log": "epoch",
        "lr": 0.1,
        "epoch": n,
        "step": n * steps,
        "train_loss": 1 / n,
        "train_accuracy": 0.9 + 0.01 * n,
        "test_loss": 1.1 / n,
        "test_accuracy": (0.8, 0.93, 0.91, 0.92)[n - 1],
        "images_per_s": 100.0,
        "train_s": 1.0,
        "test_s": 0.1,
        "elapsed_s": 1.1 * n,
    }


def log_lines(epochs=3, detail=True, monitored=True):
    out = []
    for n in range(1, epochs + 1):
        for step in (10 * n - 9, 10 * n - 4) if monitored else ():
            layers = {name: layer(i, step, detail) for i, name in enumerate(LAYERS)}
            out.append({"log": "monitor", "step": step, "epoch": n, "layers": layers})
        out.append(epoch(n))
    return out


def energy():
    macs = (100_000, 400_000, 400_000, 1_000)
    rows = [
        {
            "name": name,
            "macs": m,
            "rate_in": 0.1,
            "values_in": "binary",
            "additions": 0.1 * T * m if hidden else 0.0,
            "multiplies": 0.0 if hidden else float(T * m),
            "strict_additions": 0.1 * T * m if hidden else 0.0,
            "strict_multiplies": 0.0 if hidden else float(T * m),
        }
        for name, m, hidden in zip((*LAYERS, "readout"), macs, (False, True, True, False), strict=True)
    ]
    total = {"additions": 240_000.0, "multiplies": 303_000.0, "mj": (240_000 * 0.9 + 303_000 * 4.6) * 1e-9}
    return {
        "model": "cnn8",
        "num_steps": T,
        "rates_from": "trained weights, 5 test samples",
        "pj": {"addition": 0.9, "multiply": 4.6},
        "layers": rows,
        "ann": {"macs": sum(macs), "mj": sum(macs) * 4.6e-9},
        "totals": {"paper": total, "strict": total},
    }


def record(name="first", epochs=3, **changes):
    final = {k: v for k, v in epoch(epochs).items() if k.split("_")[0] in ("epoch", "step", "train", "test")}
    final = {k: v for k, v in final.items() if not k.endswith("_s")}
    base = {
        "schema": 1,
        "name": name,
        "status": "finished",
        "config": {
            "method": "mpd-agl",
            "seed": 0,
            "model": {"name": "cnn8", "width_mult": 0.25, "num_steps": T, "v_th": V_TH, "ann": False},
            "data": {"name": "mnist5k", "data_dir": ""},
            "loss": {"name": "ce"},
            "train": {"epochs": epochs, "batch_size": 50},
            "monitor": {"every": 5, "silent_below": 0.001, "available_below": 0.05},
        },
        "code": {"commit": "0123abcd", "changed": True},
        "versions": {"python": "3.11.7", "torch": "2.10.0"},
        "hardware": {"cpu": "a processor", "cores": 2, "memory_gb": 8.0},
        "data": {
            "name": "mnist5k",
            "classes": ["0", "1"],
            "train": {"samples": 4000, "sha256": "aa", "source": "embedded"},
            "test": {"samples": 1000, "sha256": "bb", "source": "embedded"},
        },
        "seeds": {"run": 0, "split": 0},
        "backend": "eager",
        "network": {"parameters": 1234, "macs_per_step": 901_000},
        "final": final,
        "best_on_test": {**final, "epoch": 2, "step": 20, "test_accuracy": 0.93},
        "energy": energy(),
        "failure": None,
        "clock": {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:35+00:00", "elapsed_s": 95.0},
    }
    return {**base, **changes}


def changed(table, **dotted):
    """A record with some inner fields replaced: changed(record(), config__seed=3)."""
    table = json.loads(json.dumps(table))
    for path, value in dotted.items():
        *parents, last = path.split("__")
        inner = table
        for key in parents:
            inner = inner[key]
        inner[last] = value
    return table


def write(folder, table=None, lines=None, tail=b""):
    folder.mkdir(parents=True)
    folder.joinpath("record.json").write_text(json.dumps(table or record(folder.name)))
    text = "".join(json.dumps(e) + "\n" for e in (log_lines() if lines is None else lines))
    folder.joinpath("metrics.jsonl").write_bytes(text.encode() + tail)
    return folder
