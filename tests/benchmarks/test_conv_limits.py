"""`python -m benchmarks conv_limits`: what its cells hold, what the rule takes, that it continues. No times."""

import json

import pytest

from benchmarks import conv_limits
from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops.conv import rule

pytestmark = pytest.mark.skipif(bool(native.load()[1]), reason="the native library is not here")
RUN = ["--layers", "256 to 512, 16x16", "--widths", "1", "--samples", "2", "--rounds", "1", "--threads", "1"]


def test_a_record_is_written_cell_by_cell_and_continued(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(conv_limits, "RATES", (0.1,))
    path = tmp_path / "limits.json"
    assert conv_limits.main([*RUN, "-o", str(path)]) == 0
    out, record = capsys.readouterr().out, json.loads(path.read_text())
    assert (record["rule"], record["simd"]) == (rule.VERSION, native.level())
    assert [(cell["layer"], cell["rate"]) for cell in record["cells"]] == [
        ("3x3 stride 2, 256 to 512, 16x16, 2 samples", 0.1),
        ("1x1 stride 2, 256 to 512, 16x16, 2 samples", 0.1),
    ]
    for cell in record["cells"]:
        assert set(cell["over_dense"]) == {"forward/event", "weight_grad/event"}
        assert cell["rule"]["event_below"] == rule.EVENT_OVER_DENSE[1]
    assert out.count("[") == 4  # skipping zeros is what the rule takes here
    monkeypatch.setattr(conv_limits, "RATES", (0.1, 0.4))
    measured = []
    measure = conv_limits.measure
    monkeypatch.setattr(conv_limits, "measure", lambda *a: measured.append(a[1]) or measure(*a))
    conv_limits.main([*RUN, "-o", str(path)])
    assert measured == [0.4, 0.4]
    assert capsys.readouterr().out.count("[") == 4  # at 40 % dense is taken, which is the unit
    monkeypatch.setattr(rule, "VERSION", -1)
    with pytest.raises(InputError, match=r"was measured with another rule"):
        conv_limits.main([*RUN, "-o", str(path)])


def test_layers_are_those_of_the_networks():
    assert [layer.at(8).name for layer in conv_limits.RESNET19[:3]] == [
        "3x3, 16 to 16, 32x32",
        "3x3 stride 2, 16 to 32, 32x32",
        "1x1 stride 2, 16 to 32, 32x32",
    ]
    winograd = conv_limits.works(conv_limits.RESNET19[0].at(8), 0.1, 2)[1]
    assert {name for name in winograd if name.endswith("/winograd")} == {
        f"{which}/winograd" for which in ("forward", "input_grad", "weight_grad")
    }
