"""A network whose gradients can be computed by hand."""

import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    """Two smooth layers with time first, and a readout: gradients can be computed by hand."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4).double(), nn.Linear(4, 5).double(), nn.Linear(5, 2).double()

    def forward(self, x):
        x = x.flatten(1).unsqueeze(0)
        return self.out(torch.sigmoid(self.b(torch.sigmoid(self.a(x)))))


def chain(seed):
    torch.manual_seed(seed)
    return Chain()


X = torch.rand(6, 3, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
Y = torch.arange(6) % 2


def ce(o_TNK, y):
    """In float64, where the package's own loss is float32."""
    return F.cross_entropy(o_TNK.mean(0), y)
