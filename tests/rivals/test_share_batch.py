"""Rivals on a batch that two processes share: outputs, loss, gradients, statistics and draws are those of one."""

import pytest

from mpd_agl.ops.library import load
from tests.nn.shared_batch import assert_same
from tests.ranks import on_ranks
from tests.rivals.shared_batch import CASES


@pytest.mark.skipif(load()[0] is None, reason="compares the native kernels, and they are not built here")
def test_two_processes_give_the_numbers_of_one(tmp_path):
    for rank in on_ranks("tests.rivals.shared_batch:check", 2, tmp_path):
        assert list(rank) == list(CASES)
        assert_same(rank)
