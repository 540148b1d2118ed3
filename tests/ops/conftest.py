import os

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import library

if threads := os.environ.get("MPD_AGL_TEST_THREADS"):  # `make sanitize` looks for races, so it needs more than one
    torch.set_num_threads(int(threads))


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Uninitialised tensors are filled with NaN: a kernel that forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=library.LEVELS)
def level(request):
    """Each SIMD level that this CPU has."""
    before = library.level()
    try:
        library.use_level(request.param)
    except InputError as error:
        pytest.skip(str(error))
    yield request.param
    library.use_level(before)
