"""Compiles the Triton kernels of a training step for an NVIDIA GPU that is not there: python compile_triton.py TARGET.

The launches are the backend's own: it is called on the `meta` device at the sizes of ResNet-19's first stage, and each
launch is compiled with the very arguments. `ptxas -v` reports registers and spills. Prints a JSON row per kernel.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # the interpreter compiles nothing
    os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mpd_agl.core import get_surrogate
from mpd_agl.ops.step import triton as kernels

ROWS, CHANNELS = 100 * 32 * 32, 128
"""One timestep of ResNet-19's first stage at batch 100."""


def launches(dtype, T):
    """What the backend launches for a training step of such a layer: (kernel, grid, arguments) and constants."""
    seen = []
    before, kernels._launch = kernels._launch, lambda *call, **constants: seen.append((call, constants))
    try:
        x = torch.empty(T, ROWS, CHANNELS, dtype=dtype, device="meta")
        c, t, tau = torch.empty(CHANNELS, device="meta"), torch.empty(T, device="meta"), torch.empty((), device="meta")
        kernels.moments(x)
        kernels.forward(x, c, c, c, tau, tau, T, None, None, False, False)
        wants = (False, False, False)  # soft reset, detached reset, gradient of kappa
        kernels.backward(x, x, c, c, c, tau, tau, t, t, None, None, get_surrogate("rectangular"), *wants)
        kernels.normalise_grad(x, x, c, c, c, c)
    finally:
        kernels._launch = before
    return seen


def compiled(call, constants, target):
    """The kernel compiled with the arguments of a launch, as Triton would specialise it."""
    function, _, *args = call
    names = [n for n in function.arg_names if n not in constants]
    fixed, signature, attributes = dict(constants), {}, {}
    types = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
    for name, value in zip(names, args, strict=True):
        if value is None or (isinstance(value, int) and value == 1):
            fixed[name] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = types[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(function.arg_names.index(name),)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(fixed, "constexpr")
    signature = {name: signature[name] for name in function.arg_names}
    places = {(function.arg_names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(function, signature, places, attributes)
    return triton.compile(source, target=target, options=kernels.compile_options(function, amd=False))


def ptxas(ptx):
    """Registers and spilled bytes of a thread, by an assembler that comes with Triton and knows this version of PTX."""
    programs = sorted((Path(triton.__file__).parent / "backends/nvidia/bin").glob("ptxas*"))
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        target = re.search(r"^\.target (\w+)", ptx, re.M).group(1)
        for program in programs:
            command = [program, "-v", f"-arch={target}", file.name, "-o", os.devnull]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                break
    if done.returncode:
        raise RuntimeError(done.stderr)
    text = done.stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", text))
    return {"registers": int(re.search(r"Used (\d+) registers", text).group(1)), "spilled_bytes": spilled}


def main():
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    for call, constants in launches(torch.bfloat16, 2):
        kernel = compiled(call, constants, target)
        print(json.dumps({"kernel": call[0].__name__.strip("_"), **ptxas(kernel.asm["ptx"])}))


if __name__ == "__main__":
    main()
