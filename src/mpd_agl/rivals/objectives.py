"""Objectives of systems that are compared with: layer-wise teaching, heads on inner layers, adversarial training."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import AnnBlock, Readout, SpikingBlock
from mpd_agl.nn.modes import evaluation_mode
from mpd_agl.nn.synapse import out_features
from mpd_agl.options import ConfigTable
from mpd_agl.train.attacks import Pixels, input_gradient
from mpd_agl.train.losses import Loss, mean_output
from mpd_agl.train.objective import (
    Facts,
    Objective,
    ObjectiveEntry,
    Task,
    TeacherOptions,
    read_teacher,
    register_objective,
)


class TandemOptions(TeacherOptions):
    """Options of `ltl`."""

    ltl_weight: float = Field(default=1.0, ge=0)
    """Weight of each layer's term."""


class HeadOptions(ConfigTable):
    """Options of `shortcut-heads`."""

    head_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the heads at the start; it falls to 0."""


class RobustOptions(ConfigTable):
    """Options of `robust`."""

    robust_eps: float = Field(default=2 / 255, gt=0, le=1)
    """Largest change of a pixel (0 to 1)."""
    robust_step: float = Field(default=1 / 255, gt=0, le=1)
    """Its random part."""
    robust_weight: float = Field(default=2.0, ge=0)
    """Weight of the KL divergence between attacked and clean outputs."""

    @model_validator(mode="after")
    def _check(self) -> "RobustOptions":
        if self.robust_step > self.robust_eps:
            raise ValueError(
                f"robust_step is a part of robust_eps, got {self.robust_step:g} of {self.robust_eps:g}. "
                "Use a smaller step."
            )
        return self


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


def local_target(a: Tensor, share: float = 0.999) -> Tensor:
    """LTL's target of a layer (Yang et al. 2022): `clamp(a/P, 0, 1)`, P the activation that `share` of all are under.

    >>> local_target(torch.arange(9.0), share=0.5)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """
    flat = a.flatten()
    scale = flat.kthvalue(1 + round(share * (flat.numel() - 1))).values
    return (a / scale.clamp_min(1e-12)).clamp(0, 1)


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
    """Heads on inner layers whose share of the loss falls to 0 over the training; they are dropped afterwards.

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


def rfgsm(net: nn.Module, x: Tensor, pixels: Pixels, *, eps: float, step: float) -> Tensor:
    """RFGSM as Ozdenizci et al. 2024 train with it: a random step, then one by the gradient of KL(adversarial, clean).

    `x' = x + step sign(noise)`, `x'' = x' + (eps - step) sign(dKL/dx')`, kept within eps of x.
    """
    with evaluation_mode(net):
        with torch.no_grad():
            clean = F.softmax(mean_output(net(x)), 1)
        found = pixels.within(x.detach() + pixels.steps(step, x) * torch.randn_like(x).sign(), x, 1.0)
        g = input_gradient(net, found, lambda o: F.kl_div(F.log_softmax(o, 1), clean, reduction="sum"))
        return pixels.within(found + pixels.steps(eps - step, x) * g.sign(), x, eps)


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


def _tandem(task: Task, net: Network, teacher: nn.Module, last: str) -> list[str]:
    """The layers that loss ltl compares; refuses what it would compare wrongly, or leave untrained."""
    own = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
    theirs = {n: m for n, m in teacher.named_modules() if isinstance(m, AnnBlock)}
    wrong = set(own) ^ set(theirs)
    wrong |= {n for n in set(own) & set(theirs) if _channels(own[n].synapse) != _channels(theirs[n].synapse)}
    if wrong:
        raise InputError(
            f"loss ltl compares layer by layer, and {min(wrong)} of {net.name} and of its teacher differ. "
            "Train a teacher of the same network: --model.ann.",
            "other-teacher",
        )
    if any(float(m.neuron.height) != 1 for m in own.values()):
        raise InputError(
            f"loss ltl compares firing rates, and neurons of method {task.config.method!r} give v_th where they fire. "
            "Use another method.",
            "scaled-spikes",
        )
    trained = tuple(f"{name}." for name in (*own, last))
    if loose := [name for name, _ in net.named_parameters() if not name.startswith(trained)]:
        raise InputError(
            f"loss ltl trains each layer by its own error, and {loose[0]} stands between layers and would not learn. "
            "Use another loss, or a network of plain layers (--model.attention none).",
            "untrained-layer",
        )
    return list(own)


def _channels(synapse: nn.Module | None) -> int | None:
    return None if synapse is None else out_features(synapse)


def stage_ends(net: Network) -> dict[str, int]:
    """The last spiking layer of every map size but the smallest, in order, with its channels."""
    o, by_size = net.options, dict[int, tuple[str, int]]()
    handles = [
        m.register_forward_hook(
            lambda m, i, out, n=name: by_size.update({out.shape[-1]: (n, out.shape[2])}) if out.dim() == 5 else None
        )
        for name, m in net.named_modules()
        if isinstance(m, SpikingBlock)
    ]
    place = next(net.parameters()).device
    try:
        with torch.no_grad(), evaluation_mode(net):
            net(torch.zeros(1, o.in_channels, o.image_size, o.image_size, device=place))
    finally:
        for handle in handles:
            handle.remove()
    ends = dict(by_size[size] for size in sorted(by_size, reverse=True)[:-1])
    if not ends:
        raise InputError(
            f"loss shortcut-heads needs layers of two map sizes, and {net.name} has one. Use loss ce.", "one-map-size"
        )
    return ends


def _spiking(task: Task) -> Network:
    """The network, if it is a spiking one of the package."""
    if not isinstance(task.net, Network) or task.config.model.ann:
        name, loss = task.config.model.name, task.config.loss.name
        raise InputError(f"loss {loss} needs a spiking network of mpd-agl, got {name}. Use loss ce.", "no-spiking-net")
    return task.net


def _ltl(options: TandemOptions, task: Task) -> Objective:
    net = _spiking(task)
    teacher, facts = read_teacher(options.teacher, task)
    last = next(n for n, m in net.named_modules() if isinstance(m, Readout))
    names = _tandem(task, net, teacher, last)
    return LocalTandem(task.loss, teacher, names, last, weight=options.ltl_weight, facts=facts)


def _heads(options: HeadOptions, task: Task) -> Objective:
    net = _spiking(task)
    return ShortcutHeads(task.loss, stage_ends(net), net.options.num_classes, share=options.head_share)


def _robust(options: RobustOptions, task: Task) -> Objective:
    data = task.data
    if data.x.ndim == 5 or data.sample_shape is not None:
        held = "event frames" if data.x.ndim == 5 else "samples as they are"
        raise InputError(
            f"loss robust changes pixels from 0 to 1, and {data.name} holds {held}. Train on images.", "no-pixels"
        )
    return Robust(
        task.loss,
        Pixels(data.mean, data.std),
        eps=options.robust_eps,
        step=options.robust_step,
        weight=options.robust_weight,
    )


ENTRIES = (
    ObjectiveEntry(
        name="ltl",
        build=_ltl,
        options=TandemOptions,
        one_process=True,
        about="each layer follows the teacher's (Yang et al. 2022)",
    ),
    ObjectiveEntry(
        name="shortcut-heads",
        build=_heads,
        options=HeadOptions,
        one_process=True,
        about="heads on inner layers (after Guo et al. 2024)",
    ),
    ObjectiveEntry(
        name="robust",
        build=_robust,
        options=RobustOptions,
        one_process=True,
        about="trains against RFGSM (Ozdenizci et al. 2024)",
    ),
)


def register() -> None:
    """Add them to the registry."""
    for entry in ENTRIES:
        register_objective(entry)
