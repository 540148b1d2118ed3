"""A trained network as an ONNX file: folded, any batch size, `logits` of every timestep; the prediction is their mean over T."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.interop.plainstep import plain_network
from mpd_agl.interop.wholefile import whole_file
from mpd_agl.models import Network

OPSET = 20
NEEDED = ("onnx", "onnxscript")


def check_installed(*packages: str) -> None:
    """A sentence where an extra is missing."""
    if missing := [p for p in packages if find_spec(p) is None]:
        are = "which is" if len(missing) == 1 else "which are"
        raise InputError(f"ONNX needs {' and '.join(missing)}, {are} not installed. Run pip install -e .[onnx].")


def sample(net: Network, frames: bool, count: int = 2, seed: int = 0) -> Tensor:
    """Noise in the shape that the network takes."""
    o = net.options
    shape = (count, o.in_channels, o.image_size, o.image_size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((net.num_steps, *shape) if frames else shape, generator=generator)


def export_onnx(net: Network, path: Path, *, frames: bool, int8: bool = False) -> float | None:
    """Write the file: input `x`, images (batch, C, H, W) or frames (T, batch, C, H, W); output `logits` (T, batch, classes).

    `int8` stores hidden weights as whole numbers of 8 bits with a scale per channel: a quarter of the size. Where ONNX Runtime is
    installed, the file is checked before it gets its name, and the largest difference is given; else None.
    """
    check_installed(*NEEDED)
    plain = plain_network(net.cpu(), int8=int8)
    batch = torch.export.Dim("batch", min=1)
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own code
            program: Any = torch.onnx.export(
                plain,
                (sample(net, frames),),
                None,
                input_names=["x"],
                output_names=["logits"],
                dynamic_shapes=({1 if frames else 0: batch},),
                opset_version=OPSET,
                dynamo=True,
                optimize=not int8,  # it would turn small whole weights into floats
                verbose=False,
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    with whole_file(path) as beside:
        program.save(str(beside))
        if find_spec("onnxruntime") is None:
            return None
        return check_export(net, beside, frames=frames, int8=int8)


def run_onnx(path: Path, x: Tensor, threads: int = 0) -> Tensor:
    """Logits of an exported file through ONNX Runtime, on the CPU."""
    check_installed("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def check_export(net: Network, path: Path, *, frames: bool, int8: bool = False) -> float:
    """The largest difference between the file through ONNX Runtime and torch, at another batch size than it was traced with.

    A neuron within rounding of its threshold may fire in one and not in the other: samples whose logits differ are counted, and more
    than one of eight is an error.
    """
    plain = plain_network(net.cpu(), int8=int8)
    x = sample(net, frames, count=8, seed=1)
    with torch.no_grad():
        expected_TNK = plain(x)
    difference_N = (run_onnx(path, x) - expected_TNK).abs().amax((0, 2))
    if int((difference_N > 1e-4).sum()) > 1:
        raise InputError(
            f"the exported file gives other logits than torch (by up to {float(difference_N.max()):.3g}). No file was kept. Report this."
        )
    return float(difference_N.max())
