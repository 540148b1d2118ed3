"""What each of several processes finds of an adapted network under DistributedDataParallel (run by test_ranks)."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mpd_agl.adaptation import adapt, adaptive_spikes
from mpd_agl.nn import share_batch
from mpd_agl.ops import Replicas
from tests.adaptation.peers import own_net


def check(folder: Path) -> list[Any]:
    """Widths and running variances after three steps on parts of the same batches; and of one process on the whole."""
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = torch.randn(4, 3, 16, 10, generator=torch.Generator().manual_seed(0))
    found: list[Any] = []
    for shared in (True, False):
        net, alone = own_net(norm=False), own_net(norm=False)
        for one in (net, alone):
            adapt(one, batches[0], every=1)
        ddp = DistributedDataParallel(net)
        if shared:
            share_batch(net, Replicas())
        for batch in batches[1:]:
            for model, part in ((ddp, batch[:, rank::world]), (alone, batch)):
                model.zero_grad()
                model(part).mean().backward()
        ddp(batches[0][:, rank::world])
        alone(batches[0])
        state = [[s.measured.moments()[1].tolist(), s.kappa_T.tolist()] for _, _, s in adaptive_spikes(net)]
        whole = [[s.measured.moments()[1].tolist(), s.kappa_T.tolist()] for _, _, s in adaptive_spikes(alone)]
        found.append([shared, state, whole])
    return found
