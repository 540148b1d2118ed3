"""A comparison as text: ratios first."""

from typing import Any

from mpd_agl.bench.setting import from_dict


def table(record: dict[str, Any]) -> str:
    """Every contender in a line; no ratio for one whose outputs differ."""
    base, of = record["ratios"]["base"], record["ratios"]["of"]
    lines = [f"{from_dict(record['setting']).title}; {record['rounds']} rounds, medians (least - most)"]
    lines.append(
        f"{'contender':17}{'time / ' + base:>15}{'':15}{'peak / ' + base:>15}{'ms/image':>10}{'':19}{'peak MB':>9}{'step MB':>9}"
    )
    for name, c in record["contenders"].items():
        ratio = of[name]
        first = f"{ratio['time']:15.2f}{_range(ratio['range'], 15)}" if ratio else f"{'outputs differ':>15}{'':15}"
        memory = f"{ratio['peak_memory']:15.2f}" if ratio else f"{'':15}"
        lines.append(
            f"{name:17}{first}{memory}{c['ms_per_image']:10.3f}{_range(c['spread'], 19)}"
            f"{c['peak_bytes'] / 1e6:9.0f}{c['step_bytes'] / 1e6:9.0f}"
        )
    for name, c in record["contenders"].items():
        if not c["agreement"]["agrees"]:
            lines.append(f"{name}: no ratio, its outputs are not ours ({c['agreement']['how']})")
    lines += [f"{name}: left out, {why}" for name, why in record["left_out"].items()]
    if (record["load_before"] or 0) > 0.7:
        lines.append(
            f"The machine was busy (load {record['load_before']:.1f} before the start): times are not to be trusted."
        )
    return "\n".join(lines)


def _range(pair: list[float], width: int) -> str:
    return f"{f'  ({pair[0]:.2f} - {pair[1]:.2f})':<{width}}"
