"""What a step minimises: the loss of the output, or an objective that looks at more than the output.

An objective takes the network and a batch and gives output and loss. It may have parameters of its own, which are
trained and saved with the run and are no part of the network. Shapes as in `losses`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.options import ConfigTable, part
from mpd_agl.plugins import load_plugins
from mpd_agl.train.config import RunConfig
from mpd_agl.train.losses import Loss, cross_entropy, distillation, mean_output, tet
from mpd_agl.train.runfolder import find_run

Facts = Mapping[str, Any]


class Objective(nn.Module):
    """Base: the loss of the output alone."""

    progress = 0.0
    """The share of the training that is done, set before each step."""

    def __init__(self, loss: Loss = cross_entropy, facts: Facts | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.facts = dict(facts or {})
        """What the result depends on besides configuration and data, for the run's record and digest."""

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Output and loss."""
        output: Tensor = model(x)
        return output, self.loss(output, y)


@dataclass(frozen=True)
class Task:
    """What an objective is built for."""

    config: RunConfig
    net: nn.Module
    data: ArraySet
    """The training samples."""
    device: torch.device

    @property
    def loss(self) -> Loss:
        """The cross-entropy of the mean output, smoothed as the configuration says."""
        return partial(cross_entropy, label_smoothing=self.config.loss.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class ObjectiveEntry:
    """An objective under the name that `loss.name` takes."""

    name: str
    build: Callable[[Any, Task], Objective]
    """Called with the entry's own options and the task."""
    about: str
    options: type[ConfigTable] = ConfigTable
    one_process: bool = False
    """Whether it looks into the network or runs it several times, which DDP does not carry."""


OBJECTIVES: dict[str, ObjectiveEntry] = {}


def register_objective(entry: ObjectiveEntry) -> ObjectiveEntry:
    """Let every command and `fit` take an objective of your own by its name."""
    if OBJECTIVES.setdefault(entry.name, entry) is not entry:
        raise InputError(f"there is a loss {entry.name!r} already. Give yours another name.", "taken-name")
    return entry


def get_objective(name: str) -> ObjectiveEntry:
    """The objective of that name."""
    if name not in OBJECTIVES:
        load_plugins()
    if name not in OBJECTIVES:
        raise unknown_name("loss", name, OBJECTIVES)
    return OBJECTIVES[name]


def build_objective(config: RunConfig, net: nn.Module, data: ArraySet, device: torch.device) -> Objective:
    """What `loss.name` asks for."""
    entry = get_objective(config.loss.name)
    return entry.build(part(entry.options, config.loss), Task(config, net, data, device)).to(device)


class TetOptions(ConfigTable):
    """Options of `tet`."""

    tet_lambda: float = Field(default=1e-3, ge=0, le=1)
    """Share of TET's second term, MSE of the outputs against `tet_target`."""
    tet_target: float = 1.0
    """The value that the second term pulls outputs to."""


class TeacherOptions(ConfigTable):
    """The option of an objective that learns from a trained ANN."""

    teacher: str = ""
    """The run of the same network as an ANN."""


class DistillOptions(TeacherOptions):
    """Options of `distill`."""

    distill_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the teacher's term."""
    distill_temperature: float = Field(default=3.0, gt=0)
    """What both outputs are divided by."""


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


def read_teacher(name: str, task: Task) -> tuple[nn.Module, dict[str, str]]:
    """The ANN of a finished run on the task's device, and what a record says of it."""
    from mpd_agl.train.load_run import load_run  # which builds networks for runs, objectives included

    loss, path = task.config.loss.name, find_run(name)
    if not name:
        raise InputError(
            f"loss {loss} learns from a teacher, got none. Train the ANN of the same network "
            "(mpd-agl train ... --model.ann --loss.name ce) and give its run: --loss.teacher RUN.",
            "no-teacher",
        )
    trained = load_run(path, "last", lambda text: None)
    if not trained.config.model.ann:
        raise InputError(
            f"the teacher of loss {loss} is an ANN, got the spiking run {path}. Train one by --model.ann.",
            "spiking-teacher",
        )
    shape, classes = trained.record.data["shape"], trained.record.data["classes"]
    if [*shape[-3:]] != [*task.data.x.shape[-3:]] or list(classes) != list(task.data.classes):
        raise InputError(
            f"the teacher {path} learnt {trained.record.data['name']} ({len(classes)} classes, {shape[-3:]}), and the "
            f"run has {task.data.name}. Train a teacher on the same data.",
            "other-teacher",
        )
    state = trained.net.state_dict()
    digest = hashlib.sha256(b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in state.values()))
    facts = {"teacher": trained.record.name, "teacher_sha256": digest.hexdigest()}
    return trained.net.to(task.device), facts


def _tet(options: TetOptions, task: Task) -> Objective:
    smoothing = task.config.loss.label_smoothing
    return Objective(partial(tet, lambda_=options.tet_lambda, target=options.tet_target, label_smoothing=smoothing))


def _distill(options: DistillOptions, task: Task) -> Objective:
    teacher, facts = read_teacher(options.teacher, task)
    return Distill(
        task.loss, teacher, share=options.distill_share, temperature=options.distill_temperature, facts=facts
    )


for _entry in (
    ObjectiveEntry(name="ce", build=lambda _, task: Objective(task.loss), about="cross-entropy of the mean output"),
    ObjectiveEntry(
        name="tet", build=_tet, options=TetOptions, about="cross-entropy of each timestep's output (Deng et al. 2022)"
    ),
    ObjectiveEntry(
        name="distill", build=_distill, options=DistillOptions, about="ce and a teacher's outputs (Hinton et al. 2015)"
    ),
):
    register_objective(_entry)
