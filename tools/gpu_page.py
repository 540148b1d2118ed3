"""Writes the tables of docs/gpu.md: machine code and meta device from their records, expectations computed here.

    python tools/gpu_page.py [-o docs/gpu.md]

The expectations are a model, not a measurement. Convolutions take their FLOPs at a share of the GPU's peak that cuDNN
usually reaches, or their bytes at a share of its bandwidth, whichever is longer; everything of ours, and torch's
element-wise passes, take their bytes at that share of bandwidth. The layers and sizes are those of the network itself,
seen on the meta device.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tools.active_page import between
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock
from mpd_agl.records import write_atomic

PAGE, RECORDS = Path("docs/gpu.md"), Path("docs/results/gpu")
GPUS = {  # GB/s, and dense TFLOP/s of the tensor cores in TF32 and in bf16 with float32 sums, by NVIDIA's data sheets
    "RTX 3090": (936, 35.6, 71.2),
    "A100 80 GB": (2039, 156, 312),
    "H100 SXM": (3350, 494.7, 989.4),
}
CONV_SHARE, MEMORY_SHARE = (0.35, 0.5, 0.65), 0.85
"""Of the peak: cuDNN at its usual worst, middle and best on 3x3 layers of this size; a streaming kernel."""
BATCH, IMAGES, STEPS = 100, 50_000, (2, 4, 6)
PAPER_S = 100
"""Table 4 of the paper: MPD-AGL, one epoch at T = 2 on an RTX 3090."""


def work(num_steps):
    """Of one training step of ResNet-19: FLOPs and values of each convolution, and values that our kernels move."""
    with torch.device("meta"):
        net = create_model("resnet19", num_steps=num_steps, backend="eager").train()
        x = torch.empty(BATCH, 3, 32, 32)
    convs, ours = [], 0

    def of_conv(conv, inputs, out):
        flops = 2 * out.numel() * conv.weight[0].numel()
        convs.append((flops, inputs[0].numel(), out.numel(), conv.weight.numel(), len(convs) > 0))

    def of_block(block, args, kwargs, out):
        nonlocal ours
        s = out.numel()
        x_values = s // num_steps if args[0].shape[0] == 1 else s
        # x: statistics, step, backward, then dx; dv written and read; dx. s written, g read, and what is added to s.
        ours += 7 * x_values + 2 * s + (s if kwargs.get("residual") is not None else 0)

    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(of_conv)
        elif isinstance(module, SpikingBlock):
            module.register_forward_hook(of_block, with_kwargs=True)
    net(x)
    parameters = sum(p.numel() for p in net.parameters())
    return convs, ours, parameters


def seconds(num_steps, gpu, precision, share):
    """Convolutions, our kernels, and the rest of a step."""
    bandwidth, *peaks = GPUS[gpu]
    size, peak = (4, peaks[0]) if precision == "float32" else (2, peaks[1])
    convs, ours, parameters = work(num_steps)
    stream = bandwidth * 1e9 * MEMORY_SHARE
    conv_s = 0.0
    for flops, values_in, values_out, weights, to_input in convs:
        passes = 3 if to_input else 2  # forward, weight gradient and, but for the first layer, input gradient
        moved = passes * (values_in + values_out + weights) * size
        conv_s += max(passes * flops / (peak * 1e12 * share), moved / stream)
    # the sum of two gradients where a block's input goes both ways; SGD with momentum; casts of the weights
    joins = 3 * sum(values_in for _, values_in, _, _, to_input in convs if to_input) // 2 * size
    rest_s = (joins + parameters * 4 * 6 + (parameters * 6 if size == 2 else 0)) / stream
    return conv_s, ours * size / stream, rest_s


def expected_lines():
    """The table of expectations."""
    lines = ["| GPU | precision | T | convolutions, ms | ours, ms | rest, ms | step, ms | epoch, s | range, s |"]
    lines += ["|---" * 9 + "|"]
    for gpu in GPUS:
        for precision in ("float32", "bfloat16"):
            for T in STEPS:
                low, (conv, ours, rest), high = (seconds(T, gpu, precision, share) for share in CONV_SHARE[::-1])
                steps = IMAGES / BATCH
                total = conv + ours + rest
                numbers = " | ".join(f"{1e3 * s:.1f}" for s in (conv, ours, rest, total))
                spread = f"{steps * sum(low):.0f} to {steps * sum(high):.0f}"
                lines.append(f"| {gpu} | {precision} | {T} | {numbers} | {steps * total:.0f} | {spread} |")
    return lines


def compiled_lines(record):
    """Registers by target and bytes of the kernels that walk through time; the most of the others."""
    rows = record["kernels"]
    targets = sorted({r["target"] for r in rows}, key=lambda t: (t.startswith("gfx"), t))
    spilled = sum(r["spilled_bytes"] for r in rows)
    others = [r for r in rows if r["kernel"] not in ("forward", "backward")]
    shared = max(r["shared_bytes"] for r in rows)
    lines = [
        f"Triton {record['triton']}: {len(rows)} kernels compiled, {spilled} bytes spilled in all of them, at most "
        f"{shared} bytes of",
        f"shared memory. The kernels that do not walk through time have at most {max(r['registers'] for r in others)}",
        "registers. Registers of a thread:",
        "",
        "| case | kernel | " + " | ".join(targets) + " | bytes | least | load |",
        "|---" * (5 + len(targets)) + "|",
    ]
    found = {}
    for r in rows:
        if r["kernel"] in ("forward", "backward"):
            found.setdefault((r["case"], r["kernel"]), {})[r["target"]] = r
    for (case, kernel), at in found.items():
        numbers = " | ".join(str(at[t]["registers"]) if t in at else "" for t in targets)
        seen = next(r for r in at.values() if "bytes_per_value" in r)
        moved, T = seen["bytes_per_value"], int(case.split()[0][1:])
        size = 4 if "float32" in case else 2
        x = size / T if "still" in case else size
        least = 2 * x + size if kernel == "backward" else x + size + (size if "residual" in moved else 0)
        wide = max(seen["vector_bytes"].values())
        lines.append(f"| {case} | {kernel} | {numbers} | {sum(moved.values()):.3g} | {least:.3g} | {wide} B |")
    return lines


ENDS = ("check", "run", "step")
"""Where a copy is needed: images to channels_last, from there to the flat readout, the pooled gradient spread out."""


def meta_lines(record):
    """Layout copies of each preset's step, between blocks and at its ends, over backends and precisions."""
    lines = ["| preset | steps tried | copies between blocks | at the ends | operators, triton | operators, eager |"]
    lines += ["|---" * 6 + "|"]
    for preset in dict.fromkeys(r["preset"] for r in record["steps"]):
        rows = [r for r in record["steps"] if r["preset"] == preset]
        inner = sum(n for r in rows for name, n in r["layout"].items() if name not in ENDS)
        outer = max(sum(n for name, n in r["layout"].items() if name in ENDS) for r in rows)
        counts = [next(r["operators"] for r in rows if r["backend"] == b) for b in ("triton", "eager")]
        lines.append(f"| {preset} | {len(rows)} | {inner} | {outer} | {counts[0]} | {counts[1]} |")
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=PAGE, help=f"the page (default {PAGE})")
    parser.add_argument("--records", type=Path, default=RECORDS, help=f"their folder (default {RECORDS})")
    a = parser.parse_args(argv)
    try:
        text = a.out.read_text(encoding="utf-8")
        compiled, meta = (json.loads((a.records / f"{n}.json").read_text()) for n in ("compiled", "meta"))
        made = {"compiled": compiled_lines(compiled), "meta": meta_lines(meta), "expected": expected_lines()}
        for name, lines in made.items():
            text = between(text, name, lines, a.out)
    except (InputError, OSError) as error:
        sys.exit(str(error))
    write_atomic(a.out, text.encode())


if __name__ == "__main__":
    main()
