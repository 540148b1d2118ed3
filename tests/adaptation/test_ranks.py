"""Adapted networks under DistributedDataParallel: every process has the same widths."""

from pathlib import Path

import pytest

from tests.ranks import on_ranks


def test_two_processes_have_the_same_widths(tmp_path: Path) -> None:
    first, second = on_ranks("tests.adaptation.ranks_check:check", 2, tmp_path)
    for (shared, a, whole), (_, b, _) in zip(first, second, strict=True):
        for mine, theirs, all_ in zip(a, b, whole, strict=True):
            if shared:
                for x, y, z in zip(mine, theirs, all_, strict=True):
                    assert x == y
                    assert x == pytest.approx(z, rel=1e-5)
            else:  # the buffers of rank 0 are sent to all before each pass
                assert mine[1] == theirs[1]
