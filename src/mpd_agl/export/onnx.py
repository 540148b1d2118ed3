"""A trained network as an ONNX file: folded, for any batch size, with the logits of every timestep.

The prediction is the mean of the logits over T.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.export.export import check_installed, write_export
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import Network

OPSET = 20
CHECKED = 8
"""Samples that an exported file is checked with; the network is traced with two."""


def export_onnx(
    net: nn.Module, path: Path, *, example: Tensor | None = None, frames: bool = False, int8: bool = False
) -> float | None:
    """Write the file: input `x`, images (batch, C, H, W) or frames (T, batch, C, H, W); output `logits` (T, batch, K).

    `net` is a network of this package, or your own module made of `SpikingBlock`s together with an `example` input.
    `frames` says that the batch is the input's second axis. `int8` stores hidden weights as whole numbers of 8 bits
    with a scale per channel, a quarter of the size. If ONNX Runtime is installed, the file is checked before it is
    written, and the largest difference to torch is returned; otherwise None.
    """
    check_installed("onnx", "onnx", "onnxscript")
    plain = plain_network(net, int8=int8).cpu()
    x, again = (_sample(net, example, frames, count, seed) for count, seed in ((2, 0), (CHECKED, 1)))
    batch = torch.export.Dim("batch", min=1)
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                plain,
                (x,),
                None,
                input_names=["x"],
                output_names=["logits"],
                dynamic_shapes=({1 if frames else 0: batch},),
                opset_version=OPSET,
                dynamo=True,
                optimize=not int8,  # the optimizer would turn small whole weights into floats
                verbose=False,
            )
    except Exception as error:
        if isinstance(net, Network):
            raise
        reason = str(error.__cause__ or error).strip().partition("\n")[0][:160]
        raise InputError(
            f"torch cannot trace {type(net).__name__}.forward for ONNX ({reason}). "
            "Use SpikingBlock, torch's own layers and operators, and no branches on values."
        ) from error
    content = program.model_proto.SerializeToString()
    difference = None
    if find_spec("onnxruntime") is not None:
        difference = check_export(plain, content, again, batch_axis=1 if frames else 0)
    write_export(path, content)
    return difference


def _sample(net: nn.Module, example: Tensor | None, frames: bool, count: int, seed: int) -> Tensor:
    """Noise in the shape that the network takes, with the mean and the spread of the example if there is one."""
    generator = torch.Generator().manual_seed(seed)
    if example is not None:
        shape = list(example.shape)
        shape[1 if frames else 0] = count
        spread, mean = torch.std_mean(example.cpu().float())
        return (torch.randn(shape, generator=generator) * spread.nan_to_num(1.0) + mean).to(example.dtype)
    if not isinstance(net, Network):
        raise InputError(
            f"export of your own {type(net).__name__} needs an example of its input. "
            "Use export_onnx(net, path, example=x)."
        )
    o = net.options
    shape = [count, o.in_channels, o.image_size, o.image_size]
    return torch.randn([net.num_steps, *shape] if frames else shape, generator=generator)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says about its own code."""
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def run_onnx(model: Path | bytes, x: Tensor, threads: int = 0) -> Tensor:
    """Logits of an exported file, or of its content, through ONNX Runtime on the CPU."""
    check_installed("onnx", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    content = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def check_export(plain: nn.Module, model: Path | bytes, x: Tensor, *, batch_axis: int) -> float:
    """The largest difference between ONNX Runtime and torch on x, whose batch is another than the traced one.

    A neuron within rounding of its threshold may fire in one program and not in the other. So one sample of eight may
    differ; more is an error.
    """
    with torch.no_grad():
        expected_TNK = plain(x)
    difference_TNK = (run_onnx(model, x) - expected_TNK).abs()
    # Your own network may return (batch, K).
    difference_N = difference_TNK.movedim(1 if difference_TNK.dim() > 2 else 0, 0).flatten(1).amax(1)
    if int((difference_N > 1e-4).sum()) > x.shape[batch_axis] // 8:
        raise InputError(
            f"the exported file gives other logits than torch (by up to {float(difference_N.max()):.3g}). "
            "No file was written. Report this."
        )
    return float(difference_N.max())
