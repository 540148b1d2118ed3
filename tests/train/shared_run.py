"""Runs on two ranks, one after the other in the same two processes: by `test_train_ranks.py`."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.data.loader import Loader
from mpd_agl.data.share import share
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import share_batch
from mpd_agl.ops import Replicas
from mpd_agl.train import resuming, training
from mpd_agl.train.distributed import ALONE, EndedTogether, Ranks
from mpd_agl.train.objective import Objective
from mpd_agl.train.signals import Stopped
from mpd_agl.train.step import Ema, Stepper
from tests.train.tiny import Silent, StopAt, tiny

UNEVEN: dict[str, Any] = {
    "data": {"train_samples": 46, "test_samples": 41},
    "train": {"epochs": 2, "batch_size": 12, "test_batch_size": 20},
}
"""Batches of 12, 12, 12 and 10; of 20, 20 and 1: a rank's share is once empty."""


def stopped(config: Any, path: Path, ranks: Ranks, *, by: int, at: int) -> int:
    """Stop a run by a signal to one rank; the step at which this rank ended."""
    display = StopAt(at) if ranks.rank == by else Silent()
    observed = training.Mute
    if by:
        # rank 1 shows nothing to anybody; here the test looks on
        training.Mute = lambda: display  # type: ignore[assignment,misc]
    try:
        training.start(config, path, display, ranks=ranks)
    except Stopped as stop:
        return stop.step
    finally:
        training.Mute = observed  # type: ignore[misc]
    return -1


def poisoned(path: Path, ranks: Ranks, *, at: int) -> str:
    """Give rank 1 a NaN in its input at a step of the first epoch; how this rank ended."""
    make = Loader.batch

    def batch(self: Loader, order: Any, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        x, y = make(self, order, epoch, step)
        if ranks.rank == 1 and self.train and (epoch, step) == (0, at):
            x[0, 0, 3, 3] = torch.nan
        return x, y

    Loader.batch = batch  # type: ignore[method-assign]
    try:
        training.start(tiny(UNEVEN), path, Silent(), ranks=ranks)
    except (InputError, EndedTogether) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        Loader.batch = make  # type: ignore[method-assign]
    return "no error"


def steps(ranks: Ranks, method: str, accumulate: int) -> float:
    """Optimizer steps on batches of 12, 10 and 3 in float64: the largest difference of a weight from one process's."""
    torch.manual_seed(0)
    net = create_model("cnn8", method=method, width_mult=0.05, image_size=8, backend="eager").double()
    nets = [net, copy.deepcopy(net)]
    share_batch(nets[0], Replicas())
    shared, alone = (
        Stepper(
            net,
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            Objective(lambda o_TNK, y_N: F.cross_entropy(o_TNK.mean(0), y_N)),
            device=torch.device("cpu"),
            accumulate=accumulate,
            clip_norm=1.0,
            ema=Ema(net, 0.9),
            ranks=chosen,
        )
        for net, chosen in zip(nets, (ranks, ALONE), strict=True)
    )
    for number, N in enumerate((12, 10, 3)):
        x, y = torch.randn(N, 3, 8, 8, dtype=torch.float64), torch.randint(0, 10, (N,))
        own = torch.from_numpy(share(np.arange(N), accumulate, ranks.rank, ranks.world))
        torch.manual_seed(number)
        whole = alone(x, y)
        torch.manual_seed(number)
        part = shared(x[own], y[own])
        assert (part.count, part.correct) == (N, whole.correct)
        assert abs(part.loss - whole.loss) < 1e-12
        assert abs(part.grad_norm - whole.grad_norm) < 1e-12
    pairs = [*zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True)]
    assert shared.ema is not None
    assert alone.ema is not None
    pairs += zip(shared.ema.net.state_dict().values(), alone.ema.net.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def runs(folder: Path) -> Any:
    ranks = Ranks(launch="test", connected=True)
    worst = max(steps(ranks, method, parts) for method, parts in (("mpd-agl", 1), ("mpd-agl", 3), ("asgl", 3)))
    training.start(tiny(UNEVEN), folder / "two", Silent(), ranks=ranks)
    ends = [
        stopped(tiny(UNEVEN), folder / "stopped-0", ranks, by=0, at=5),
        stopped(tiny(UNEVEN), folder / "stopped-1", ranks, by=1, at=6),
    ]
    nan = poisoned(folder / "nan", ranks, at=2)
    again = [resuming.began_in_this_launch(folder / "two", ranks), resuming.began_in_this_launch(folder / "one", ranks)]
    resumed = training.resume(folder / "from-one", {}, Silent(), ranks=ranks).status  # one process began it
    training.resume(folder / "stopped-1", {}, Silent(), ranks=ranks)
    return {"worst": worst, "ends": ends, "nan": nan, "again": again, "resumed": resumed}
