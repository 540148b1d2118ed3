"""Operations of each network, counted by hand."""

from mpd_agl.diagnosis import count_operations
from mpd_agl.models import create_model
from tests.models.test_models import NAMES, small


def test_resnet19_counts():
    layers = count_operations(create_model("resnet19", num_steps=2))
    assert sum(o.macs for o in layers) == 2_285_373_952
    ends = {o.kind: o.macs for o in layers if o.kind != "hidden"}
    assert 2 * (ends["stem"] + ends["readout"]) == 7_083_008
    assert [o.name for o in layers][:3] == ["stem", "stage1.block1.conv1", "stage1.block1.conv2"]
    assert [o.name for o in layers][7:10] == ["stage2.block1.conv1", "stage2.block1.conv2", "stage2.block1.shortcut"]
    assert layers[-2].name == "fc1"
    assert len([o for o in layers if "shortcut" not in o.name]) == 19


def test_vggsnn_counts_by_hand():
    def conv(cin, cout, size):
        return cin * cout * 9 * size * size

    want = [
        conv(2, 64, 48), conv(64, 128, 48),
        conv(128, 256, 24), conv(256, 256, 24),
        conv(256, 512, 12), conv(512, 512, 12),
        conv(512, 512, 6), conv(512, 512, 6),
        512 * 3 * 3 * 10,
    ]  # fmt: skip
    layers = count_operations(create_model("vggsnn", num_steps=1))
    assert [o.macs for o in layers] == want
    assert sum(want) == 1_361_654_784


def test_vgg13_counts_by_hand():
    def conv(cin, cout, size):
        return cin * cout * 9 * size * size

    want = [
        conv(3, 64, 64), conv(64, 64, 64),
        conv(64, 128, 32), conv(128, 128, 32),
        conv(128, 256, 16), conv(256, 256, 16),
        conv(256, 512, 8), conv(512, 512, 8),
        conv(512, 512, 4), conv(512, 512, 4),
        512 * 2 * 2 * 4096, 4096 * 4096, 4096 * 200,
    ]  # fmt: skip
    layers = count_operations(create_model("vgg13", num_steps=1))
    assert [o.macs for o in layers] == want


def test_the_ann_of_each_network_has_the_same_operations():
    for name in NAMES:
        snn, ann = small(name), small(name, ann=True)
        assert count_operations(snn) == count_operations(ann)
