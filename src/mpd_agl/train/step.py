"""One optimizer step on one batch: forward, loss, backward, update; and, if a value is not finite, where that began.

A step never waits for a GPU: loss, hits and the norm of the gradient stay on the device until `Stepper.read` fetches
those of several steps at once. A flag on the device keeps a bad step, and every step after it, from changing the
weights.
"""

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from mpd_agl.data.share import part_sizes
from mpd_agl.errors import InputError
from mpd_agl.nn import Neuron
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.losses import correct
from mpd_agl.train.objective import Objective

BATCH_AXIS = -4
"""Of images (N, C, H, W) and frames (T, N, C, H, W) alike."""
READ_EVERY = 20
"""Steps between two readings on a device that the process would have to wait for. On the CPU every step is read."""


class NotFinite(Exception):
    """A NaN or Inf in the input, the loss or the gradient, `ago` steps before the last one.

    The weights were not touched by it.
    """

    def __init__(self, text: str, ago: int = 0) -> None:
        super().__init__(text)
        self.ago = ago


@dataclass(frozen=True)
class StepResult:
    """Of the whole batch: mean loss, right predictions, samples, norm of the gradient."""

    loss: float
    correct: int
    count: int
    grad_norm: float


class Ema:
    """A moving average of the weights: `average <- decay * average + (1 - decay) * weights` after each step.

    It is a second network, evaluated in the first one's place. Integer buffers are copied. (torch's AveragedModel
    starts by a copy and averages integers, so it computes something else.)
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        """Take the network's present state into the average."""
        for mine, theirs in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True):
            if mine.is_floating_point():
                mine.lerp_(theirs, 1 - self.decay)
            else:
                mine.copy_(theirs)


class Stepper:
    """`stepper(x, y)` trains on a batch and returns its result; a loop calls `step` and, now and then, `read`.

    `accumulate` cuts the batch into parts whose gradients are summed; `clip_norm` 0 clips nothing; `precision` is
    autocast's. Several `ranks` each bring their share of the batch, and all make the step that one process would make
    on the whole of it.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        *,
        device: torch.device,
        precision: str = "float32",
        accumulate: int = 1,
        clip_norm: float = 0.0,
        ema: Ema | None = None,
        ranks: Ranks = ALONE,
        read_every: int = 0,
    ) -> None:
        self.net, self.optimizer, self.objective, self.device = net, optimizer, objective, device
        self.accumulate, self.clip_norm, self.ema = accumulate, clip_norm, ema
        self.read_every = read_every or (1 if device.type == "cpu" else READ_EVERY)
        """After so many steps a loop reads them."""
        check_precision(precision, device)
        self.dtype: torch.dtype = getattr(torch, precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.parameters = [p for p in (*net.parameters(), *objective.parameters()) if p.requires_grad]
        schedules = (getattr(module, "progress", None) for module in net.modules())
        self._schedules = [progress for progress in schedules if isinstance(progress, Tensor)]
        self.ranks, self.model = ranks, ranks.parallel(net, device)
        self._bad = torch.zeros((), device=device)  # 1 from the first step on that was not finite
        self._unread: list[tuple[Tensor, int]] = []  # per step its figures and the number of samples
        self._parts: tuple[Tensor, ...] = ()  # the last batch, to find out where a NaN began

    @property
    def unread(self) -> int:
        """Steps whose results were not read."""
        return len(self._unread)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the network runs."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device.type, dtype=self.dtype)

    def __call__(self, x: Tensor, y: Tensor) -> StepResult:
        """Train on a batch and read the result at once; `NotFinite` if anything is not finite."""
        self.step(x, y)
        return self.read()[-1]

    def step(self, x: Tensor, y: Tensor, progress: float = 0.0) -> None:
        """Train on a batch; `read` gives the result.

        `progress` is the share of the run that is done. A module with a buffer of that name follows a schedule by it.
        """
        ranks = self.ranks
        for schedule in self._schedules:
            schedule.fill_(progress)
        self.objective.progress = progress
        N = int(ranks.sum([y.shape[0]])[0])
        self.optimizer.zero_grad(set_to_none=True)
        sizes = part_sizes(N, self.accumulate, ranks.rank, ranks.world)
        self._parts = torch.split(x, sizes, BATCH_AXIS)
        losses, hits = [], []
        for k, (x_part, y_part) in enumerate(zip(self._parts, torch.split(y, sizes), strict=True)):
            with self._reducing(k == len(sizes) - 1):
                with self.autocast():
                    if len(y_part):
                        output, loss = self.objective(self.model, x_part, y_part)
                        loss = loss * (len(y_part) / N)
                    else:  # this rank's share is empty; the others wait for its part in their sums
                        output = self.model(x_part)
                        loss = output.sum() * 0.0
                # A NaN in the input need not reach the loss, because a NaN potential fires no spike. This factor is 1,
                # or NaN if the input is not finite; the gradients carry it to every rank.
                loss = loss * (1 + 0 * x_part.sum()).to(loss.dtype)
                torch.autograd.backward(self.scaler.scale(loss))
            losses.append(loss.detach())
            hits.append(correct(output.detach(), y_part))
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None]).to(self.device)
        figures = torch.stack([t.to(losses[0].dtype) for t in (*losses, torch.stack(hits).sum(), norm, x.sum())])
        self._unread.append((figures, N))
        checked = torch.stack(losses) if self.scaler.is_enabled() else figures
        self._bad = torch.maximum(self._bad, (~torch.isfinite(checked).all()).float())
        self._update(norm)

    def _update(self, norm: Tensor) -> None:
        """Change the weights, unless this step or one before it was not finite."""
        if self.clip_norm:
            clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        if self.scaler.is_enabled():  # looks for infinite gradients by itself, and skips the step for them
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:  # so it does for a step behind a bad one
                        p.grad.add_(torch.where(self._bad > 0, torch.nan, 0.0))
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.optimizer.defaults.get("fused"):  # takes the flag on the device, as GradScaler hands it over
            self.optimizer.grad_scale, self.optimizer.found_inf = None, self._bad  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]
        elif self._bad:
            return
        else:
            self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.net)

    def read(self) -> list[StepResult]:
        """The results of the steps since the last reading, oldest first; `NotFinite` tells the first bad one."""
        unread, self._unread = self._unread, []
        values = torch.cat([figures for figures, _ in unread]).tolist() if unread else []
        found = []
        for ago, (figures, N) in zip(reversed(range(len(unread))), unread, strict=True):
            (*losses, hits, norm, seen), values = values[: len(figures)], values[len(figures) :]
            total = 0.0
            for value in losses:
                total += value
            whole, right = self.ranks.sum([total, hits]) if self.ranks.world > 1 else (total, hits)
            if not math.isfinite(whole) or not (math.isfinite(norm) or self.scaler.is_enabled()):
                raise NotFinite(self._reason(losses, total, norm, seen, last=ago == 0), ago)
            found.append(StepResult(whole, int(right), N, norm))
        if unread:
            for module in self.net.modules():
                if isinstance(module, Neuron):
                    module.check_threshold(wait=True)
        return found

    def _reason(self, losses: list[float], total: float, norm: float, seen: float, *, last: bool) -> str:
        """What this rank saw of a bad step; where it began, if the batch and the gradients are still in memory."""
        if not math.isfinite(seen):
            return "the input holds NaN or Inf"
        if not math.isfinite(total):
            if not last or self.ranks.world > 1:
                return f"loss {total}"
            part = next(k for k, value in enumerate(losses) if not math.isfinite(value))
            return f"loss {total}, first in {first_bad_layer(self.net, self._parts[part])}"
        return f"gradient norm {norm}" + (f", first in {first_bad_gradient(self.net)}" if last else "")

    def _reducing(self, last: bool) -> Any:
        """Gradients of all ranks are added with the batch's last part."""
        return nullcontext() if last or self.model is self.net else self.model.no_sync()  # type: ignore[operator]


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device cannot train in."""
    if precision == "float16" and device.type != "cuda":
        raise InputError(f"train.precision float16 needs a GPU, got {device}. Use bfloat16 or float32.", "no-gpu")


def bad(tensor: Tensor) -> bool:
    """Whether a tensor holds a NaN or Inf."""
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())


def bad_state(net: nn.Module) -> str | None:
    """The first parameter or buffer with a NaN or Inf."""
    return next((name for name, tensor in net.state_dict().items() if bad(tensor)), None)


@torch.no_grad()
def first_bad_layer(net: nn.Module, x: Tensor) -> str:
    """Run the batch again and name the first layer whose output is not finite."""
    if name := next((name for name, parameter in net.named_parameters() if bad(parameter)), None):
        return f"parameter {name}"
    found: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and bad(output):
                found.append(name)

        return look

    handles = [m.register_forward_hook(hook(n)) for n, m in net.named_modules() if n]
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return f"layer {found[0]}" if found else "the loss itself"


def first_bad_gradient(net: nn.Module) -> str:
    """The parameter whose gradient went bad first: backward runs from the output, so the last in network order."""
    names = [name for name, p in net.named_parameters() if p.grad is not None and bad(p.grad)]
    return f"the gradient of {names[-1]}" if names else "the gradient's norm, which overflows"
