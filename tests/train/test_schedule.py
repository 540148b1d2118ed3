"""The rate that the loop sets at each step."""

import pytest

from mpd_agl.train.config import OptimConfig
from mpd_agl.train.optim import learning_rate


def test_cosine_by_steps_meets_cosine_by_epochs_at_their_starts() -> None:
    by_epoch, by_steps = (OptimConfig(lr=0.05, schedule=s) for s in ("cosine", "cosine-steps"))
    for epoch in range(4):
        assert learning_rate(by_steps, epoch, 4) == learning_rate(by_epoch, epoch, 4)
        assert learning_rate(by_epoch, epoch, 4, 0.9) == learning_rate(by_epoch, epoch, 4)
    assert learning_rate(by_steps, 3, 4, 1 - 1 / 80) == pytest.approx(0.05 * 2.40955e-5, rel=1e-5)


def test_warm_up_rises_within_an_epoch_only_by_steps() -> None:
    by_steps = OptimConfig(lr=0.1, schedule="cosine-steps", warmup_epochs=1)
    assert [learning_rate(by_steps, 0, 4, done) for done in (0.0, 0.5)] == pytest.approx([0.05, 0.075])
    assert learning_rate(by_steps, 1, 4) == pytest.approx(0.1)
