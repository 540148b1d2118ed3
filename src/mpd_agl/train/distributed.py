"""The processes of a run (ranks), as torchrun starts them; one process is the trivial case and needs no process group.

Every rank trains on its share of each batch, and DDP adds the gradients. Rank 0 alone reads and writes the run's
folder and speaks to the person; what others must know of it they are sent, so that no disk need be shared. Messages
between ranks are numbers and text: nothing that could run code.
"""

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its defaults name the group there is when it is imported, and would keep it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mpd_agl.errors import InputError

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for a silent one. One that dies is noticed at once, by its closed connections."""
BACKENDS = "cpu:gloo,cuda:nccl"
EXIT_ALONE = 76
"""The other processes are gone; a launcher may start all of them again."""
TEXT_BYTES = 400


class PeerLost(Exception):
    """Another rank died or cannot be reached: this one cannot continue alone."""


class EndedTogether(Exception):
    """All ranks end for a reason that rank 0 tells."""


class Ranks:
    """The processes of a run, as one of them sees them. Alone, what is summed, gathered or sent stays as it is.

    Several are connected: numbers and text go through gloo, tensors on GPUs through NCCL.
    """

    rank, world, backend = 0, 1, "none"

    def __init__(self, launch: str = "", *, local_rank: int = 0, connected: bool = False) -> None:
        self.launch, self.local_rank = launch, local_rank
        """`launch` names what started this process, also after a restart; it is empty without a launcher."""
        if connected:
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            self.backend = "nccl" if "nccl" in dist.get_backend_config() else "gloo"

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and speaks."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Each value's sum over the ranks, in float64."""
        return values if self.world == 1 else _reduced(torch.tensor(values, dtype=torch.float64), dist.ReduceOp.SUM)

    def most(self, value: int) -> int:
        """The largest of the ranks' values."""
        return value if self.world == 1 else int(_reduced(torch.tensor([value]), dist.ReduceOp.MAX)[0])

    def texts(self, text: str) -> list[str]:
        """Every rank's text, cut to its first 400 bytes."""
        if self.world == 1:
            return [text]
        data = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        rows = [torch.zeros(TEXT_BYTES, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(rows, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]

    def from_first(self, data: bytes) -> bytes:
        """Rank 0's bytes, on all ranks."""
        size = self.most(len(data) if self.first else 0)
        if self.world == 1 or not size:
            return data if self.world == 1 else b""
        content = torch.frombuffer(bytearray(data if self.first else bytes(size)), dtype=torch.uint8)
        dist.broadcast(content, 0)
        return content.numpy().tobytes()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let a node's first rank go first: the others then find what it has downloaded or converted."""
        if self.local_rank:
            self.most(0)
        yield
        if not self.local_rank:
            self.most(0)

    def device(self, name: str) -> str:
        """The device of this rank: its own GPU, where there are several ranks and GPUs."""
        if self.world == 1:
            return name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cuda":
            count = torch.cuda.device_count()
            if self.local_rank >= count:
                raise InputError(
                    f"train.device is cuda with {self.local_rank + 1} or more processes on a machine "
                    f"with {count} GPUs. Start one process per GPU, or use --train.device cpu."
                )
            torch.cuda.set_device(self.local_rank)
            return f"cuda:{self.local_rank}"
        if name.startswith("cuda:"):
            raise InputError(
                f"train.device {name!r} names one GPU, and {self.world} processes train. Use cuda, auto or cpu."
            )
        return name

    def parallel(self, net: nn.Module, device: torch.device) -> nn.Module:
        """The network as it is called in training; with several ranks DDP adds up its gradients.

        Buffers are not sent around, because every rank computes the same. Gradients are added, not averaged, because
        losses carry their weights. Buckets are never rebuilt (`find_unused_parameters`), so that sums have the same
        order after a restart.
        """
        if self.world == 1:
            return net
        with _no_warnings():  # of the option's new name, which older versions of torch do not know
            parallel = DistributedDataParallel(
                _Spare(net, device),
                device_ids=[device.index] if device.type == "cuda" else None,
                broadcast_buffers=False,
                find_unused_parameters=True,
            )
        parallel.register_comm_hook(None, _add)
        return parallel

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Tell a lost connection by `PeerLost`."""
        try:
            yield
        except RuntimeError as error:
            lost = isinstance(error, dist.DistError) or "gloo" in str(error)  # gloo's errors have no class
            if self.world > 1 and lost:
                raise PeerLost(_reason(error)) from error
            raise


ALONE = Ranks()


def _reduced(values: Tensor, how: Any) -> list[float]:
    dist.all_reduce(values, op=how)
    found: list[float] = values.tolist()
    return found


def _reason(error: Exception) -> str:
    """The first sentence of what a communication library says, without its source file."""
    return (
        str(error).partition("\n")[0].rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0]
        or type(error).__name__
    )


class _Spare(nn.Module):
    """A network with one unused parameter: without any, DDP warns that `find_unused_parameters` is not needed."""

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.net, self.spare = net, nn.Parameter(torch.zeros(1, device=device))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(x)
        return output


def _add(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """DDP's communication: a sum, in place of its mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed


@contextmanager
def connect() -> Iterator[Ranks]:
    """The ranks of this process's run, from the environment that torchrun sets; without it, one process alone."""
    env = os.environ
    launch = env.get("TORCHELASTIC_RUN_ID", "")
    if launch == "none":  # torchrun without --rdzv-id: the agent, which outlives its workers, is the launch
        launch = f"agent {os.getppid()} at {env.get('MASTER_PORT', '')}"
    if int(env.get("WORLD_SIZE", "1")) == 1 or "RANK" not in env:
        yield Ranks(launch)
        return
    own = not dist.is_initialized()  # else by the program around this one, such as Ray
    try:
        if own:
            with _no_warnings():
                dist.init_process_group(BACKENDS if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise PeerLost(f"rank {env['RANK']} cannot reach the others: {_reason(error)}") from error
    try:
        ranks = Ranks(launch, local_rank=int(env.get("LOCAL_RANK", "0")), connected=True)
        with ranks.guard():
            yield ranks
    finally:
        if own:
            gc.collect()  # gloo's threads end with the last reference; one that outlives Python may abort the process
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
