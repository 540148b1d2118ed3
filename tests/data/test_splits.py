"""The split rules against their own words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.data.splits import RULES, split_hash, split_indices
from mpd_agl.errors import InputError
from tests.refused import refused

LABELS = np.repeat(np.arange(10), 1000)


@pytest.mark.parametrize("rule", RULES)
def test_train_and_test_share_nothing_and_miss_nothing(rule):
    train, _ = split_indices(LABELS, rule, split="train", seed=0)
    test, _ = split_indices(LABELS, rule, split="test", seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(10_000))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()
    share = 7000 if "70" in rule else 9000
    assert len(train) == share
    if "per-class" in rule:
        assert np.bincount(LABELS[train]).tolist() == [share // 10] * 10


def test_the_default_draws_by_seed():
    first, first_hash = split_indices(LABELS, split="test", seed=0)
    again, again_hash = split_indices(LABELS, split="test", seed=0)
    other, other_hash = split_indices(LABELS, split="test", seed=1)
    np.testing.assert_array_equal(first, again)
    assert first_hash == again_hash != other_hash
    assert len(np.intersect1d(first, other)) == pytest.approx(100, abs=50)  # by chance 1,000 * 1,000 / 10,000
    # Classes are drawn independently: the same places in each class would be a fault.
    assert len(np.unique(first % 1000)) > 500


def test_first_rules_by_hand():
    labels = np.array([0] * 12 + [1] * 20)
    by_number, _ = split_indices(labels, "first-90-per-class", split="test", seed=0)
    assert by_number.tolist() == [11, 30, 31]  # ceil(10.8) = 11 and 18 train
    by_name, _ = split_indices(labels, "first-90-per-class-by-name", split="test", seed=0)
    # By name: 0 1 10 11 2 .. 9, and 0 1 10 .. 19 2 .. 9.
    assert by_name.tolist() == [9, 12 + 8, 12 + 9]
    seventy, _ = split_indices(labels, "first-70-per-class", split="test", seed=0)
    assert seventy.tolist() == [9, 10, 11, *range(26, 32)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=30, max_size=200), st.sampled_from(RULES), st.integers(0, 1000))
def test_any_labels_split_into_two(labels, rule, seed):
    y = np.array(labels)
    train, _ = split_indices(y, rule, split="train", seed=seed)
    assert len(np.unique(train)) == len(train)
    if len(train) == len(y):
        with pytest.raises(InputError, match="leaves no test sample"):
            split_indices(y, rule, split="test", seed=seed)
    else:
        test, _ = split_indices(y, rule, split="test", seed=seed)
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(y)))


def test_the_hash_is_of_the_set():
    assert split_hash(np.array([3, 1, 2])) == split_hash(np.array([1, 2, 3]))
    assert split_hash(np.array([1, 2, 4])) != split_hash(np.array([1, 2, 3]))
    # The seeded default must not change between releases: published hashes would lose their meaning.
    assert split_indices(LABELS, split="test", seed=0)[1].startswith("1ada57ce4b5257bc")


def test_bad_requests_are_refused():
    with refused("unknown-name", "'per-class-90-10'"):
        split_indices(LABELS, "per-class-90", split="train", seed=0)
    with pytest.raises(InputError, match="leaves no test sample out of 2"):
        split_indices(np.array([0, 1]), split="test", seed=0)
