"""A GPU's path without a GPU: machine code by `tools/gpu_compile.py`, a training step by `tools/gpu_meta.py`, pages."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mpd_agl.nn import METHODS
from mpd_agl.train.presets import list_presets, read_preset
from mpd_agl.train.resolve import merge
from tools import gpu_meta

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "results" / "gpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
AT_THE_ENDS = {"check", "run", "step"}
"""Where a copy is needed: images to channels_last, from there to the flat readout, the pooled gradient spread out."""


def hold_counts(rows):
    """No spills, and the least bytes that each kernel can move."""
    for row in rows:
        name = f"{row['case']}, {row['kernel']}, {row['target']}"
        assert row["spilled_bytes"] == 0, name
        moved = row.get("bytes_per_value")
        if moved is None:
            continue
        T, dtype = int(row["case"].split()[0][1:]), BYTES[row["case"].split()[1]]
        still = "still" in row["case"]
        if row["kernel"] == "forward":
            assert moved["s"] == dtype, name
            assert moved["x"] == (dtype / T if still else dtype), name
            assert moved.get("residual", dtype) == dtype, name
        elif row["kernel"] == "backward":
            assert moved["g"] == dtype, name
            assert moved["dv_out"] == (dtype / T if still else dtype), name
            # x fits into registers up to 16 steps; beyond, it is read a second time, from the cache
            assert moved["x"] <= (dtype if T <= 16 else 2 * dtype), name
        elif row["kernel"] == "normalise_grad":
            assert (moved["x"], moved["dv"]) == (dtype, 2 * dtype), name
        else:
            assert moved == {"x": dtype}, name


@needs_triton
def test_the_machine_code_of_a_training_step(tmp_path):
    command = [sys.executable, "tools/gpu_compile.py", "--targets", "sm_80", "--cases", "T2 bfloat16"]
    command += ["--kernels", "forward", "backward"]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    out = tmp_path / "compiled.json"
    subprocess.run([*command, "-o", str(out)], cwd=ROOT, env=env, check=True, capture_output=True)
    rows = json.loads(out.read_text())["kernels"]
    assert [r["kernel"] for r in rows] == ["forward", "backward"]
    hold_counts(rows)
    for row in rows:
        assert row["registers"] <= 128
        assert set(row["vector_bytes"].values()) == {16}


def test_the_recorded_table_holds_the_counts():
    rows = json.loads((RECORDS / "compiled.json").read_text())["kernels"]
    assert {r["target"] for r in rows} == {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "gfx942"}
    assert len({r["case"] for r in rows if r["kernel"] == "backward"}) >= 35
    hold_counts(rows)


COPYING = ("rival-ds-atgo", "rival-mpbn", "rival-mpr", "rival-statten", "rival-trsg")
"""Rivals that run by the written equations, attend to tokens or start at a learnt potential: they wait for nothing, and
they do copy."""


@needs_triton
@pytest.mark.parametrize("preset", list(list_presets()))
def test_a_training_step_of_every_preset_waits_for_nothing_and_copies_nothing(preset):
    found = gpu_meta.step(read_preset(preset))  # a wait is an error there
    if preset.startswith(COPYING):
        return
    assert set(found["layout"]) <= AT_THE_ENDS
    assert sum(found["layout"].values()) <= 2
    assert not found["dtype"]


@needs_triton
@pytest.mark.parametrize("options", [{"precision": "bfloat16"}, {"precision": "float16"}, {"shared": True}])
@pytest.mark.parametrize("backend", ["triton", "eager"])
def test_autocast_a_scaled_loss_and_shared_statistics(backend, options):
    found = gpu_meta.step(read_preset("demo"), backend=backend, **options)
    assert set(found["layout"]) <= AT_THE_ENDS
    # autocast casts weights and images; the fused step of triton takes its input as it comes
    if backend == "triton":
        assert set(found["dtype"]) <= {"over_time", "dense", "mean_output", "step"}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mpd-agl"])
def test_a_training_step_of_every_method(method):
    steps = METHODS[method].max_steps or 2
    gpu_meta.step(merge(read_preset("demo"), {"method": method, "model": {"num_steps": steps}}), backend="eager")


def test_the_meta_device_finds_what_it_is_there_for(monkeypatch):
    from mpd_agl.nn import SpikingBlock

    forward = SpikingBlock.forward

    def with_copy(self, s, *args, **kwargs):
        return forward(self, s.contiguous(memory_format=torch.contiguous_format).clone(), *args, **kwargs)

    monkeypatch.setattr(SpikingBlock, "forward", with_copy)
    assert sum(gpu_meta.step(read_preset("demo"), backend="eager")["layout"].values()) > 5
    for fault, message in ((lambda s: float(s.sum()), "item"), (lambda s: s + torch.zeros(s.shape), "device")):

        def faulty(self, s, *args, fault=fault, **kwargs):
            fault(s)
            return forward(self, s, *args, **kwargs)

        monkeypatch.setattr(SpikingBlock, "forward", faulty)
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            gpu_meta.step(read_preset("demo"), backend="eager")
