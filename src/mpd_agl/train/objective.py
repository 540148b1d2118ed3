"""What a step minimises where that is more than a loss of the output: teachers, heads, adversarial inputs.

An objective takes the network and a batch and gives output and loss. It may have parameters of its own, which are
trained and saved with the run and are no part of the network. It finds layers by their names and reads what they give;
what they compute it does not know. Shapes as in `losses`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.train.attacks import Pixels, rfgsm
from mpd_agl.train.losses import Loss, distillation, local_target, mean_output

Facts = Mapping[str, Any]


class Objective(nn.Module):
    """Base: the loss of the output alone."""

    progress = 0.0
    """The share of the training that is done, set before each step."""

    def __init__(self, loss: Loss, facts: Facts | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.facts = dict(facts or {})
        """What the result depends on beside configuration and data, for the run's record and digest."""

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Output and loss."""
        output: Tensor = model(x)
        return output, self.loss(output, y)


@contextmanager
def tapped(
    net: nn.Module, names: Sequence[str], *, apart: Sequence[str] = (), residuals: bool = False
) -> Iterator[dict[str, Tensor]]:
    """What these modules give in the passes within, with or without the residual that they were asked to add.

    The modules `apart` get inputs that pass no gradient on: each then learns from its own output alone.
    """
    found: dict[str, Tensor] = {}

    def see(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
            residual = kwargs.get("residual")
            found[name] = output if residuals or residual is None else output - residual

        return hook

    def cut(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        detached = {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return tuple(a.detach() if isinstance(a, Tensor) else a for a in args), detached

    handles: list[Any] = [net.get_submodule(n).register_forward_hook(see(n), with_kwargs=True) for n in names]
    handles += [net.get_submodule(n).register_forward_pre_hook(cut, with_kwargs=True) for n in apart]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class Distill(Objective):
    """Soft targets of a teacher (Hinton et al. 2015): `losses.distillation`."""

    def __init__(
        self, loss: Loss, teacher: nn.Module, *, share: float, temperature: float, facts: Facts | None = None
    ) -> None:
        super().__init__(loss, facts)
        self._teacher = [teacher.eval().requires_grad_(False)]  # a list: the teacher is no part of the run's state
        self.share, self.temperature = share, temperature

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`(1 - share) loss + share T^2 KL(teacher, student)`."""
        with torch.no_grad():
            wanted_NK = mean_output(self._teacher[0](x))
        output: Tensor = model(x)
        soft = distillation(mean_output(output), wanted_NK, self.temperature)
        return output, (1 - self.share) * self.loss(output, y) + self.share * soft


class LocalTandem(Objective):
    """Offline LTL (Yang et al. 2022): each layer's firing rate follows the teacher's activation, and nothing passes on.

    `sum_l MSE(spike count/T, clamp(A/P99.9(A), 0, 1)) + loss(output)`; the inputs of every layer are detached.
    """

    def __init__(
        self,
        loss: Loss,
        teacher: nn.Module,
        names: Sequence[str],
        last: str,
        *,
        weight: float,
        facts: Facts | None = None,
    ) -> None:
        super().__init__(loss, facts)
        self._teacher = [teacher.eval().requires_grad_(False)]
        self.names, self.last, self.weight = list(names), last, weight

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over layers."""
        teacher = self._teacher[0]
        with torch.no_grad(), tapped(teacher, self.names) as activations:
            teacher(x)
        with tapped(model, self.names, apart=[*self.names, self.last]) as spikes:
            output: Tensor = model(x)
        loss = self.loss(output, y)
        for name in self.names:
            rate, target = spikes[name].float().mean(0), local_target(activations[name].float().mean(0))
            loss = loss + self.weight * F.mse_loss(rate, target)
        return output, loss


class ShortcutHeads(Objective):
    """Heads on inner layers whose share of the loss falls to 0 over the training; they are dropped afterwards. Ours.

    After the idea of ShortcutBP (Guo et al. 2024), whose heads and schedule we have not found. A head is the mean over
    space and a linear layer; `w = share (1 - progress)`, the loss `(1 - w) loss(output) + w mean_k loss(head_k)`.
    """

    def __init__(self, loss: Loss, channels: Mapping[str, int], num_classes: int, *, share: float) -> None:
        super().__init__(loss)
        self.share, self.names = share, list(channels)
        self.heads = nn.ModuleList(nn.Linear(count, num_classes) for count in channels.values())

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the network, loss of output and heads."""
        with tapped(model, self.names, residuals=True) as found:
            output: Tensor = model(x)
        w = self.share * (1 - self.progress)
        heads = [self.loss(h(found[n].flatten(3).mean(3)), y) for n, h in zip(self.names, self.heads, strict=True)]
        return output, (1 - w) * self.loss(output, y) + w * torch.stack(heads).mean()


class Robust(Objective):
    """Adversarial fine-tuning (Ozdenizci et al. 2024): `loss(clean) + weight KL(adversarial, clean)`, by RFGSM."""

    def __init__(self, loss: Loss, pixels: Pixels, *, eps: float, step: float, weight: float) -> None:
        super().__init__(loss)
        self.pixels, self.eps, self.step, self.weight = pixels, eps, step, weight

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Output for the clean batch; both outputs pass gradients on."""
        adversarial = rfgsm(model, x, self.pixels, eps=self.eps, step=self.step)
        output: Tensor = model(x)
        clean_NK, found_NK = mean_output(output), mean_output(model(adversarial))
        kl = F.kl_div(F.log_softmax(found_NK, 1), F.softmax(clean_NK, 1), reduction="batchmean")
        return output, self.loss(output, y) + self.weight * kl
