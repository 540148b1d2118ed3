"""The examples in the documentation run."""

import doctest

import pytest

from mpd_agl.data import counter, events, splits


@pytest.mark.parametrize("module", [counter, events, splits], ids=lambda module: module.__name__)
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
