"""Compile every Triton kernel for GPUs that are not there, and record what the machine code holds.

    python tools/gpu_compile.py -o docs/results/gpu/compiled.json      the whole table, about ten minutes
    python tools/gpu_compile.py --targets sm_80 --cases T4             some of it, to the screen

The launches are the backend's own: it is called on the `meta` device at the sizes of ResNet-19's first stage, and each
launch is compiled with the very arguments. For NVIDIA `ptxas -v` tells registers, spills and shared memory, and the PTX
tells how many bytes a thread reads and writes through each argument; for AMD the assembly's metadata tells registers
and spills. Needs the package triton and no GPU. A file that is there keeps its other rows.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # the interpreter compiles nothing

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mpd_agl.core import SURROGATES, get_surrogate
from mpd_agl.ops.step import triton as kernels

TARGETS = {f"sm_{c}": GPUTarget("cuda", c, 32) for c in (75, 80, 86, 89, 90)} | {
    "gfx942": GPUTarget("hip", "gfx942", 64)
}
ROWS, CHANNELS = 100 * 32 * 32, 128
"""One timestep of ResNet-19's first stage at batch 100."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DATA = {"_forward": "x residual s", "_backward": "x g dv_out", "_normalise_grad": "x dv", "_moments": "x"}
"""The arguments of the size of x."""


def cases():
    """Name: dtype, T, channels, and the options of the step."""
    found = {}
    for name in DTYPES:
        for T in (1, 2, 4, 6, 8, 10, 16, 32):
            found[f"T{T} {name}"] = (name, T, CHANNELS, {})
        found[f"T4 {name} still"] = (name, 4, CHANNELS, {"still": True})
        found[f"T4 {name} residual"] = (name, 4, CHANNELS, {"residual": True})
    for surrogate in SURROGATES:
        found[f"T4 bfloat16 {surrogate}, width learnt"] = (
            "bfloat16",
            4,
            CHANNELS,
            {"surrogate": surrogate, "kappa": True},
        )
    for T in (4, 32):
        for reset in ("hard", "soft"):
            options = {"general": True, "soft": reset == "soft"}
            found[f"T{T} bfloat16 general, {reset}"] = ("bfloat16", T, CHANNELS, options)
    found["T4 bfloat16 detached"] = ("bfloat16", 4, CHANNELS, {"detach": True})
    found["T4 float32 5 channels"] = ("float32", 4, 5, {})
    found["T4 float32 one channel"] = ("float32", 4, 1, {})
    return found


def launches(dtype, T, C, options):
    """What the backend launches for a training step of such a layer: (kernel, grid, arguments, constants)."""
    seen = []
    before, kernels._launch = kernels._launch, lambda *call, **constants: seen.append((call, constants))
    try:
        M = ROWS * CHANNELS // C
        x = torch.empty(1 if options.get("still") else T, M, C, dtype=DTYPES[dtype], device="meta")
        s = torch.empty(T, M, C, dtype=DTYPES[dtype], device="meta")
        c, t = torch.empty(C, device="meta"), torch.empty(T, device="meta")
        general = options.get("general", False)
        tau, v_th = (c, c) if general else (torch.empty((), device="meta"), 0.5)
        kept = torch.empty(M, C, device="meta") if general else None
        soft, residual = options.get("soft", False), s if options.get("residual") else None
        kernels.moments(x)
        kernels.forward(x, c, c, c, tau, v_th, T, residual, soft, kept, general)
        surrogate = get_surrogate(options.get("surrogate", "rectangular"))
        rest = (soft, kept, t if general else None, kept)
        wants = options.get("detach", False), options.get("kappa", False)
        kernels.backward(x, s, c, c, c, tau, t, v_th, surrogate, *wants, *rest)
        kernels.normalise_grad(x, x, c, c, c, c)
    finally:
        kernels._launch = before
    return seen


def compiled(call, constants, target):
    """The kernel compiled with the arguments of a launch, as Triton would specialise it, and the arguments it kept."""
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
    options = kernels.compile_options(function, amd=target.backend == "hip")
    kept = [n for n in function.arg_names if n not in fixed]
    return triton.compile(source, target=target, options=options), kept


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


def amd(assembly):
    """The same for AMD, from the metadata of its assembly."""

    def number(key):
        return int(re.search(rf"\.{key}:\s*(\d+)", assembly).group(1))

    spilled = number("vgpr_spill_count") + number("sgpr_spill_count")
    return {"registers": number("vgpr_count"), "spilled_bytes": 4 * spilled}


SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16, "f32": 4, "f64": 8, "u32": 4, "u64": 8}
ACCESS = re.compile(r"(ld|st)\.global\S*?(?:\.v(\d))?\.([bfus]\d+) (.*)")


def accesses(ptx, names):
    """Of each argument in the PTX: loads or stores of a thread as (`ld` or `st`, bytes).

    Addresses are followed from the arguments through the registers; each is made from one pointer.
    """
    entry = re.search(r"\.entry (\w+)\(", ptx).group(1)
    made_from, found = {}, defaultdict(list)
    lines = [line.strip() for line in ptx.splitlines()]
    for _ in range(3):  # registers of a loop are made from what stands further down
        for line in lines:
            if m := re.search(rf"ld\.param\.[bu]64\s+(%rd\d+), \[{entry}_param_(\d+)\]", line):
                made_from[m.group(1)] = int(m.group(2))
            elif m := re.match(r"(?:add|sub|mov|cvta|selp|mad|shl|or)\S*\s+(%rd\d+), (.*);", line):
                origins = [made_from[r] for r in re.findall(r"%rd\d+", m.group(2)) if r in made_from]
                if origins:
                    made_from.setdefault(m.group(1), origins[0])
    for line in lines:
        if m := ACCESS.search(line):
            kind, vector, size, operands = m.groups()
            register = re.search(r"\[\s*(%rd\d+)", operands)
            origin = made_from.get(register.group(1)) if register else None
            name = names[origin] if origin is not None and origin < len(names) else "?"
            found[name].append((kind, int(vector or 1) * SIZES[size]))
    return found


def look(call, constants, name):
    """What is recorded of one compiled kernel; bytes are a thread's, for each value of x and timestep it works on."""
    function, target = call[0], TARGETS[name]
    kernel, names = compiled(call, constants, target)
    row = {"shared_bytes": kernel.metadata.shared}
    if target.backend == "hip":
        return row | amd(kernel.asm["amdgcn"])
    row |= ptxas(kernel.asm["ptx"])
    found = accesses(kernel.asm["ptx"], names)
    assert "?" not in found, f"{function.__name__} on {name}: an address that no argument explains"
    data = {n: found[n] for n in DATA.get(function.__name__, "").split() if n in found}
    if data:
        values = constants["ROWS"] * constants["CHANNELS"] // (32 * kernels.WARPS) * constants.get("T", 1)
        row["bytes_per_value"] = {n: sum(b for _, b in got) / values for n, got in data.items()}
        row["vector_bytes"] = {n: max(b for _, b in got) for n, got in data.items()}
    return row


def is_wanted(name, wanted):
    """Whether a case or a kernel is asked for, by its name or the words that it begins with."""
    return not wanted or any(name == w or name.startswith(f"{w} ") for w in wanted)


def table(targets, wanted, some):
    """Every kernel of every case on every target."""
    rows, known = [], {}
    for case, (dtype, T, C, options) in cases().items():
        if not is_wanted(case, wanted):
            continue
        for call, constants in launches(dtype, T, C, options):
            function, grid = call[0], call[1]
            kernel = function.__name__.strip("_")
            if not is_wanted(kernel, some):
                continue
            kinds = [str(a.dtype) if isinstance(a, torch.Tensor) else a for a in call[2:]]
            key = json.dumps([function.__name__, kinds, constants])
            for target in targets:
                if (key, target) in known:  # such as the sums of two dtypes
                    continue
                known[key, target] = True
                row = look(call, constants, target)
                rows.append({"case": case, "kernel": kernel, "target": target, "programs": list(grid), **row})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--cases", nargs="+", help="names, or beginnings of names")
    parser.add_argument("--kernels", nargs="+", help="names, such as forward (default: all)")
    parser.add_argument("-o", "--out", default="-", help="the file to write; - is the screen")
    a = parser.parse_args()
    kept = json.loads(Path(a.out).read_text())["kernels"] if Path(a.out).exists() else []
    asked = ((a.cases, "case"), (a.kernels, "kernel"), (a.targets, "target"))
    kept = [row for row in kept if not all(is_wanted(row[key], some) for some, key in asked)]
    record = {
        "what": "tools/gpu_compile.py",
        "triton": version("triton"),
        "torch": torch.__version__,
        "values_of_a_step": [ROWS, CHANNELS],
        "kernels": sorted(
            kept + table(a.targets, a.cases, a.kernels), key=lambda row: list(TARGETS).index(row["target"])
        ),
    }
    text = json.dumps(record, indent=None, separators=(",", ":")).replace('{"case"', '\n{"case"') + "\n"
    if a.out == "-":
        print(text)
    else:
        Path(a.out).write_text(text)


if __name__ == "__main__":
    main()
