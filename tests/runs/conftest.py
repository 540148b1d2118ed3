from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """A run sets threads and determinism for its process; other tests are not that process's."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)
