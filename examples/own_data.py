"""Your own data and your own network, trained as a run and reported: python examples/own_data.py [FOLDER | FILE.npz]

FOLDER holds a folder of images per class. Without one, arrays are made of the embedded digits.
"""

import sys

import torch
from torch import nn

import mpd_agl
from mpd_agl import cli
from mpd_agl.data import load_dataset
from mpd_agl.nn import Readout, SpikingBlock, over_time


class Net(nn.Module):
    def __init__(self, in_channels: int, num_classes: int, num_steps: int = 4) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.conv1 = SpikingBlock(nn.Conv2d(in_channels, 16, 3, padding=1, bias=False))
        self.conv2 = SpikingBlock(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False))
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.readout = Readout(32 * 4 * 4, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        s = self.conv2(self.conv1(images.unsqueeze(0), self.num_steps))
        return self.readout(over_time(self.pool, s).flatten(2))  # logits (T, N, classes)


def main() -> None:
    torch.manual_seed(0)
    options = {"epochs": 3, "batch_size": 50, "optimizer": "adamw", "name": "own-data", "resume": True}
    if len(sys.argv) > 1:
        kind = "npz" if sys.argv[1].endswith(".npz") else "folder"
        train = load_dataset(kind, "train", data_dir=sys.argv[1])
        net = Net(train.x.shape[-1], len(train.classes))
        record = mpd_agl.fit(net, sys.argv[1], **options)
    else:
        train, test = load_dataset("mnist5k", "train"), load_dataset("mnist5k", "test")
        pairs = [(half.x[::4, ..., 0] / 255, half.y[::4]) for half in (train, test)]  # plain arrays (N, H, W)
        record = mpd_agl.fit(Net(1, 10), *pairs, **options)
    print(f"test accuracy {100 * record.final['test_accuracy']:.1f} %")
    cli.main(["report", "runs/own-data"])


if __name__ == "__main__":
    main()
