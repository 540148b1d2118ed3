"""`mpd-agl train --dry-run`: the configuration, and what it would cost."""

import json

from mpd_agl.runs.config import RunConfig
from mpd_agl.runs.resolve import to_toml


def show(config: RunConfig, *, as_json: bool) -> int:
    """Measure and print."""
    from mpd_agl.runs.dry_run import measure, to_dict
    from mpd_agl.train.console import duration

    if not as_json:
        print(to_toml(config))
    e = measure(config)
    if as_json:
        print(json.dumps({"config": config.model_dump(mode="json"), "estimate": to_dict(e)}))
        return 0
    T = config.model.num_steps
    rows = {
        "parameters": f"{e.parameters:,}",
        "operations": f"{e.macs_per_step / 1e6:,.2f} M multiply-accumulates per input and timestep, times T={T}",
        "backend": e.backend,
        "measured on": f"{e.data}, {e.steps_measured} steps of {config.train.batch_size}",
        "model's step": f"{1e3 * e.step_s:.1f} ms ({1e3 * e.step_s / config.train.batch_size:.2f} ms per image)",
        "loop's step": f"{1e3 * (e.loop_step_s + e.monitor_s):.1f} ms with data and monitor: overhead {100 * e.overhead:.1f} %",
        "epoch": f"{duration(e.epoch_s)}, of it testing {duration(e.test_s)}",
        "run": f"{duration(e.run_s)} for {config.train.epochs} epochs",
        "peak memory": f"{e.peak_mb:,.0f} MB",
    }
    print("\n".join(f"{name:14}{text}" for name, text in rows.items()))
    return 0
