"""A batch that two processes share: outputs, loss, gradients and running statistics are those of one process."""

from typing import Any

import pytest
from mpd_agl.ops.native import load

from tests.nn.shared_batch import SPLITS
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(load()[0] is None, reason="compares the native kernels, and they are not built here")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_ranks("tests.nn.shared_batch:check", 2, tmp_path_factory.mktemp("ranks"))


def test_the_moments_and_their_gradient(found: list[Any]) -> None:
    for rank in found:
        results = {case: result for kind, case, result in rank if kind == "moments"}
        assert [r["count"] for r in results.values()] == [3 * sum(split) for split in SPLITS]
        assert max(r["worst"] for r in results.values()) < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_networks_of_every_kind(found: list[Any], dtype: str, tolerance: float) -> None:
    for rank in found:
        results = {case: result for kind, case, result in rank if kind == "network" and case.endswith(dtype)}
        assert len(results) == {"float64": 9, "float32": 9}[dtype]
        for case, result in results.items():
            assert result["same_draws"], case
            for what in ("outputs", "loss", "gradients", "statistics"):
                assert result[what] < tolerance, (case, what, result[what])
