"""A batch that two processes share: outputs, loss, gradients and running statistics are those of one process."""

import pytest

from mpd_agl.ops.library import load
from tests.nn.shared_batch import CASES, SPLITS, assert_same
from tests.ranks import on_ranks


@pytest.mark.skipif(load()[0] is None, reason="compares the native kernels, and they are not built here")
def test_two_processes_give_the_numbers_of_one(tmp_path):
    for rank in on_ranks("tests.nn.shared_batch:check", 2, tmp_path):
        assert [r["count"] for r in rank["moments"]] == [3 * sum(split) for split in SPLITS]
        assert max(r["worst"] for r in rank["moments"]) < 1e-12
        assert list(rank["networks"]) == list(CASES)
        assert_same(rank["networks"])
