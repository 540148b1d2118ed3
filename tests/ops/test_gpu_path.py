"""A GPU's path without a GPU: machine code of the Triton kernels, and a training step on the `meta` device."""

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
from tests.ops import meta_step

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
AT_THE_ENDS = {"check", "run", "step"}
"""Where a copy is needed: images to channels_last, from there to the flat readout, the pooled gradient spread out."""


@needs_triton
def test_the_machine_code_of_a_training_step_spills_nothing(tmp_path):
    command = [sys.executable, str(Path(__file__).parent / "compile_triton.py"), "80"]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    rows = {r["kernel"]: r for r in map(json.loads, done.stdout.splitlines())}
    assert {"forward", "backward", "normalise_grad", "moments"} <= set(rows)
    assert {r["spilled_bytes"] for r in rows.values()} == {0}
    assert max(r["registers"] for r in rows.values()) <= 128


COPYING = ("rival-ds-atgo", "rival-mpbn", "rival-mpr", "rival-statten", "rival-trsg")
"""Rivals that run by the written equations, attend to tokens or start at a learnt potential: they wait for nothing, and
they do copy."""


@needs_triton
@pytest.mark.parametrize("preset", list(list_presets()))
def test_a_training_step_of_every_preset_waits_for_nothing_and_copies_nothing(preset):
    found = meta_step.step(read_preset(preset))  # a wait is an error there
    if preset.startswith(COPYING):
        return
    assert set(found["layout"]) <= AT_THE_ENDS
    assert sum(found["layout"].values()) <= 2
    assert not found["dtype"]


@needs_triton
@pytest.mark.parametrize("options", [{"precision": "bfloat16"}, {"precision": "float16"}, {"shared": True}])
@pytest.mark.parametrize("backend", ["triton", "eager"])
def test_autocast_a_scaled_loss_and_shared_statistics(backend, options):
    found = meta_step.step(read_preset("demo"), backend=backend, **options)
    assert set(found["layout"]) <= AT_THE_ENDS
    # autocast casts weights and images; the fused step of triton takes its input unchanged
    if backend == "triton":
        assert set(found["dtype"]) <= {"over_time", "dense", "mean_output", "step"}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mpd-agl"])
def test_a_training_step_of_every_method(method):
    steps = METHODS[method].max_steps or 2
    meta_step.step(merge(read_preset("demo"), {"method": method, "model": {"num_steps": steps}}), backend="eager")


def test_the_meta_device_finds_what_it_is_there_for(monkeypatch):
    from mpd_agl.nn import SpikingBlock

    forward = SpikingBlock.forward

    def with_copy(self, s, *args, **kwargs):
        return forward(self, s.contiguous(memory_format=torch.contiguous_format).clone(), *args, **kwargs)

    monkeypatch.setattr(SpikingBlock, "forward", with_copy)
    assert sum(meta_step.step(read_preset("demo"), backend="eager")["layout"].values()) > 5
    for fault, message in ((lambda s: float(s.sum()), "item"), (lambda s: s + torch.zeros(s.shape), "device")):

        def faulty(self, s, *args, fault=fault, **kwargs):
            fault(s)
            return forward(self, s, *args, **kwargs)

        monkeypatch.setattr(SpikingBlock, "forward", faulty)
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            meta_step.step(read_preset("demo"), backend="eager")
