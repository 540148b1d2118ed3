import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Uninitialised tensors are filled with NaN: a kernel that forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)
