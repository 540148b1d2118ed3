"""The block of an ANN of the same architecture."""

import torch
from torch import Tensor, nn

from mpd_agl.nn.norm import BatchNorm
from mpd_agl.nn.synapse import out_features, synapse_output


class AnnBlock(nn.Module):
    """The iso-architecture counterpart of a `SpikingBlock`: synapse - batch norm - ReLU, no time."""

    def __init__(self, synapse: nn.Module) -> None:
        super().__init__()
        self.synapse = synapse
        self.norm: nn.Module = BatchNorm(out_features(synapse))

    def forward(self, x_TNC: Tensor, num_steps: int | None = None, *, residual: Tensor | None = None) -> Tensor:
        """Activations, with `residual` added.

        An ANN has no time: it takes `num_steps` as the spiking networks pass it, and ignores it.
        """
        y = torch.relu(self.norm(synapse_output(self.synapse, x_TNC, "dense")))
        return y if residual is None else y + residual
