"""A folded network one timestep at a time, its potentials passed in and out: what an early answer needs.

Everything else in this package runs all T steps at once and has no state. Here a call is a pure function `(x_t, v) ->
(logits_t, v)`: the potentials of every neuron layer come as an argument and go back as a result. Folded tdBN knows no
time: T calls give what one pass gives.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models.base import Network
from mpd_agl.nn import Neuron, SpikingBlock, is_folded

States = tuple[Tensor, ...]
"""What every neuron layer keeps of its potential after a step, in the order in which the layers run."""


class _Walk:
    """The states of one call on their way through the layers."""

    def __init__(self, before: States | None) -> None:
        self._before: Iterator[Tensor] | None = None if before is None else iter(before)
        self.after: list[Tensor] = []

    def step(self, neuron: Neuron, i_NC: Tensor) -> Tensor:
        spikes_NC, kept_NC = neuron.step(i_NC, None if self._before is None else next(self._before))
        assert kept_NC is not None
        self.after.append(kept_NC)
        return spikes_NC


class _StepBlock(nn.Module):
    """A folded `SpikingBlock` for one timestep; its state lives in the call's walk, not here."""

    def __init__(self, block: SpikingBlock) -> None:
        super().__init__()
        self.synapse, self.currents, self.neuron = block.synapse, block.currents, block.neuron
        self.walk: _Walk | None = None

    def forward(
        self,
        s_1NC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        current_inputs: Sequence[Tensor] = (),
    ) -> Tensor:
        """Spikes of this step."""
        assert self.walk is not None
        i_NC: Tensor = s_1NC[0] if self.synapse is None else self.synapse(s_1NC[0])
        for current, added_1NC in zip(self.currents, current_inputs, strict=True):
            i_NC = i_NC + current(added_1NC)[0]
        s_1NC = self.walk.step(self.neuron, i_NC).unsqueeze(0)
        return s_1NC if residual is None else s_1NC + residual


class OneStep(nn.Module):
    """`step(x_N, v) -> (logits_NK, v)` of a folded network; start with v = None, at rest.

    >>> from mpd_agl.models import create_model
    >>> from mpd_agl.nn import fold
    >>> net = fold(create_model("cnn8", width_mult=0.125, image_size=16).eval())
    >>> step, images = OneStep(net), torch.randn(3, 3, 16, 16)
    >>> logits_NK, v = step(images, None)
    >>> logits_NK, v = step(images, v)
    >>> logits_NK.shape, len(v)
    (torch.Size([3, 10]), 7)
    """

    def __init__(self, folded: Network) -> None:
        super().__init__()
        if folded.options.ann:
            raise InputError("an ANN has no timesteps, and so no early answer. Use a spiking network.")
        if folded.is_tied_to_steps:
            raise InputError(
                "an early answer runs one timestep at a time, and a part of this network (norm tebn or tab, attention "
                "tcja, statten) needs several at once. Use norm='tdbn' or 'bn' without attention."
            )
        if folded.training or not is_folded(folded):
            raise InputError(
                "one timestep at a time needs a folded network, got tdBN that is still there. Call "
                "mpd_agl.nn.fold(net.eval())."
            )
        self.net = copy.deepcopy(folded)
        for name, module in list(self.net.named_modules()):
            if isinstance(module, SpikingBlock):
                parent, _, leaf = name.rpartition(".")
                setattr(self.net.get_submodule(parent), leaf, _StepBlock(module))
        self.net.num_steps = 1

    @torch.no_grad()
    def forward(self, x_NCHW: Tensor, v: States | None) -> tuple[Tensor, States]:
        """Logits of this step, and the potentials that the next one starts from."""
        walk = _Walk(v)
        blocks = [m for m in self.net.modules() if isinstance(m, _StepBlock)]
        for block in blocks:
            block.walk = walk
        try:
            logits_1NK: Tensor = self.net(x_NCHW)
        finally:
            for block in blocks:
                block.walk = None
        return logits_1NK[0], tuple(walk.after)


@torch.no_grad()
def answer_early(step: OneStep, x: Tensor, num_steps: int, threshold: float) -> tuple[Tensor, Tensor]:
    """Mean logits_NK and the timesteps that each sample took: a sample ends when its best class reaches `threshold`.

    The probability is the softmax of the mean logits so far (Eq. 9). Samples that have ended are no longer computed.
    `x` is images
    (N, C, H, W), shown at every step, or frames (T, N, C, H, W).
    """
    if not 0 < threshold <= 1:
        raise InputError(
            f"the threshold of an early answer is a probability in (0, 1], got {threshold}. 0.9 is a start."
        )
    frames = x.dim() == 5
    N = x.shape[1] if frames else x.shape[0]
    open_ = torch.arange(N, device=x.device)
    taken_N = torch.zeros(N, dtype=torch.int64, device=x.device)
    out_NK, sum_NK, v = x.new_zeros(N, step.net.options.num_classes), x.new_zeros(N, step.net.options.num_classes), None
    for t in range(num_steps):
        logits_MK, v = step(x[t, open_] if frames else x[open_], v)
        sum_NK = sum_NK + logits_MK
        mean_MK = sum_NK / (t + 1)
        ended = (
            mean_MK.softmax(1).amax(1) >= threshold if t + 1 < num_steps else torch.ones_like(open_, dtype=torch.bool)
        )
        out_NK[open_[ended]], taken_N[open_[ended]] = mean_MK[ended], t + 1
        if ended.any():
            open_, sum_NK, v = open_[~ended], sum_NK[~ended], tuple(v_NC[~ended] for v_NC in v)
        if not len(open_):
            break
    return out_NK, taken_N
