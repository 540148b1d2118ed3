from tests.train.conftest import torch_as_before as torch_as_before
