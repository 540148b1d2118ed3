"""The option kappa of the rivals' methods, by the tests of the package's own."""

import pytest

from tests.models import test_width_options as own


@pytest.mark.parametrize(("method", "kappa"), [("psg", 2.0), ("asgl", 4)])
def test_a_width_that_is_kept_or_learnt_starts_where_asked(method, kappa):
    own.test_a_width_that_is_kept_or_learnt_starts_where_asked(method, kappa)


def test_a_rule_that_computes_its_width_refuses_one():
    own.test_a_rule_that_computes_its_width_refuses_one("slope-schedule")
