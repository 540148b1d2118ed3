"""Your own spiking network from SpikingBlocks, trained on the embedded digits: python examples/own_network.py"""

import torch
from torch import nn

from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.nn import Readout, SpikingBlock, over_time


class Net(nn.Module):
    def __init__(self, num_steps: int = 2, method: str = "mpd-agl") -> None:
        super().__init__()
        self.num_steps = num_steps
        self.conv1 = SpikingBlock(nn.Conv2d(1, 16, 3, padding=1, bias=False), method=method)
        self.conv2 = SpikingBlock(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), method=method)
        self.pool = nn.AvgPool2d(2)
        self.readout = Readout(32 * 7 * 7, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        s = self.conv1(images.unsqueeze(0), self.num_steps)  # one convolution; T timesteps come out
        s = over_time(self.pool, self.conv2(s))
        return self.readout(s.flatten(2))  # logits (T, N, classes); the prediction is their mean over T


def main() -> None:
    torch.manual_seed(0)
    train = Loader(load_dataset("mnist5k", "train"), batch_size=50, seed=0, train=True)
    test = Loader(load_dataset("mnist5k", "test"), batch_size=250, seed=0, train=False)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        net.train()
        for x, y in train.epoch(epoch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x).mean(0), y)
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = sum(int((net(x).mean(0).argmax(1) == y).sum()) for x, y in test.epoch(0))
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {right / 10:.1f} %")


if __name__ == "__main__":
    main()
