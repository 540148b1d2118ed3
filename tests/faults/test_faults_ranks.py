"""One kill of a rank in the small set; how quickly it recovers is the nightly row's to judge."""

from pathlib import Path
from random import Random

from tests.faults import ranks


def test_a_killed_rank_is_recovered_at_the_first_restart(tmp_path: Path) -> None:
    tally = ranks.run(tmp_path, 1, Random(1), limit=ranks.HANG_S)
    assert tally.failures == []
    assert tally.held == tally.tries == 1
