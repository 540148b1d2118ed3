"""Where a run's numbers come from, as tables."""

from typing import Any

from mpd_agl.options import flatten
from mpd_agl.records.progress import duration
from mpd_agl.report.runs import Run
from mpd_agl.report.section import Table


def provenance(run: Run) -> Table:
    """Code, versions, machine, data, seeds, times."""
    r = run.record
    commit = r.code.get("commit")
    rows: list[tuple[str, Any]] = [
        ("status", r.status),
        ("commit", (commit + (", with changed files" if r.code.get("changed") else "")) if commit else "not known"),
        ("versions", ", ".join(f"{k} {v}" for k, v in r.versions.items())),
        ("machine", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in r.hardware.items())),
        ("backend", r.backend),
        ("network", ", ".join(map(_fact, r.network, r.network.values()))),
        ("seeds", ", ".join(f"{k} {v}" for k, v in r.seeds.items())),
    ]
    for split in ("train", "test"):
        facts = flatten(r.data[split])
        rows.append((f"{split} data", f"{r.data['name']}, " + ", ".join(f"{k} {v}" for k, v in facts.items())))
    clock = r.clock
    rows += [(k, clock[k]) for k in ("started", "ended") if k in clock]
    if "elapsed_s" in clock:
        rows.append(("training time", duration(clock["elapsed_s"])))
    return Table((), [(k, str(v)) for k, v in rows])


def _fact(name: str, value: Any) -> str:
    """A count before its name, anything else behind."""
    words = name.replace("_", " ")
    if isinstance(value, dict):
        return f"{words} " + " ".join(f"{k.replace('_', ' ')} {v}" for k, v in value.items())
    return f"{value:,} {words}" if isinstance(value, int) else f"{words} {value}"


def configuration(run: Run) -> Table:
    """Every field."""
    return Table((), [(k, str(v)) for k, v in flatten(run.record.config).items()])


def warned(run: Run) -> list[str]:
    """The run's warnings, each layer's first one, with its epoch; and whether it still holds at the end."""
    limits = run.record.config.get("monitor", {})  # in runs of 0.2; since then in the warning itself
    last = run.snapshots[-1]["layers"] if run.snapshots else {}
    out, seen = [], set()
    for w in run.warnings:
        key = (w.get("kind"), w.get("layer"))
        if key in seen:
            continue
        seen.add(key)
        text = f"Epoch {w.get('epoch', '?')}: {w.get('text', 'a warning without words')}"
        kind = {"silent": ("rate_T", "silent_below"), "unavailable": ("available_T", "available_below")}.get(
            str(w.get("kind"))
        )
        if kind and w.get("layer") in last:
            values = last[w["layer"]][kind[0]]
            value = sum(values) / len(values)
            now = "still so" if value < w.get("limit", limits.get(kind[1], 0)) else "recovered"
            text += f"; {now} at the last snapshot ({100 * value:.2f} %)"
        out.append(text + ".")
    return out
