"""One optimizer step on one batch: forward, loss, backward, update. The part of a run that is the model's own work."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from mpd_agl.data.share import part_sizes
from mpd_agl.errors import InputError
from mpd_agl.train import finite
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.ema import Ema
from mpd_agl.train.losses import Loss, correct

BATCH_AXIS = -4
"""Of images (N, C, H, W) and frames (T, N, C, H, W) alike."""


class NotFinite(Exception):
    """A NaN or Inf in the loss or the gradient; the text names where it began. The weights were not touched by it."""


@dataclass(frozen=True)
class StepResult:
    """Of the whole batch: mean loss, right predictions, samples, norm of the gradient."""

    loss: float
    correct: int
    count: int
    grad_norm: float


class Stepper:
    """Callable: `stepper(x, y)` trains on a batch. Everything it uses arrives built.

    `accumulate` cuts the batch into parts whose gradients are summed; `clip_norm` 0 clips nothing; `precision` is autocast's. Several
    `ranks` each bring their share of the batch, and all make the step that one process would make on the whole of it.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        device: torch.device,
        precision: str = "float32",
        accumulate: int = 1,
        clip_norm: float = 0.0,
        ema: Ema | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.net, self.optimizer, self.loss, self.device = net, optimizer, loss, device
        self.accumulate, self.clip_norm, self.ema = accumulate, clip_norm, ema
        self.dtype: torch.dtype = getattr(torch, precision)
        if self.dtype == torch.float16 and device.type != "cuda":
            raise InputError(f"train.precision float16 needs a GPU, got device {device}. Use bfloat16 or float32.")
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.ranks, self.model = ranks, ranks.parallel(net, device)

    def autocast(self) -> torch.autocast:
        """The context in which the network runs."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def __call__(self, x: Tensor, y: Tensor) -> StepResult:
        """Train on a batch; `NotFinite` before the weights change, if anything is not finite."""
        ranks = self.ranks
        N = int(ranks.sum([y.shape[0]])[0])
        total, right = 0.0, 0
        self.optimizer.zero_grad(set_to_none=True)
        sizes = part_sizes(N, self.accumulate, ranks.rank, ranks.world)
        for k, (x_part, y_part) in enumerate(
            zip(torch.split(x, sizes, BATCH_AXIS), torch.split(y, sizes), strict=True)
        ):
            with self._reducing(k == len(sizes) - 1):
                with self.autocast():
                    output = self.model(x_part)
                if len(y_part):
                    loss = self.loss(output, y_part) * (y_part.shape[0] / N)
                else:
                    loss = output.sum() * 0.0  # this rank's share is empty; the others wait for its part in their sums
                value = loss.item()
                if ranks.world == 1 and (value != value or abs(value) == float("inf")):
                    raise NotFinite(f"loss {value}, first in {finite.first_bad_layer(self.net, x_part)}")
                torch.autograd.backward(self.scaler.scale(loss))
            total += value
            right += correct(output.detach(), y_part)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = get_total_norm(grads)
        grad_norm = norm.item()
        if ranks.world > 1:
            own, (total, right) = total, ranks.sum([total, right])  # type: ignore[assignment]
            if not abs(total) < float("inf"):
                raise NotFinite(f"loss {own}")
        if not self.scaler.is_enabled() and not grad_norm < float("inf"):
            raise NotFinite(f"gradient norm {grad_norm}, first in {finite.first_bad_gradient(self.net)}")
        if self.clip_norm:
            clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update(self.net)
        return StepResult(total, int(right), N, grad_norm)

    def _reducing(self, last: bool) -> Any:
        """Gradients of all ranks are added with the batch's last part."""
        return nullcontext() if last or self.model is self.net else self.model.no_sync()  # type: ignore[operator]
