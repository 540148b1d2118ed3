"""`with refused("unknown-name", "resnet19"):` a refusal by its code, with these values in its message."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpd_agl.errors import InputError


@contextmanager
def refused(code: str, *values: object) -> Iterator[None]:
    with pytest.raises(InputError) as error:
        yield
    assert error.value.code == code, error.value
    missing = [value for value in values if str(value) not in str(error.value)]
    assert not missing, (missing, str(error.value))
