"""Rivals on a batch that two ranks share: run by `test_share_batch.py`."""

from pathlib import Path
from typing import Any

import torch

from tests.nn.shared_batch import Case, checked, network

METHODS = ("psg", "asgl", "deeptage", "ds-atgo", "mp-init-trsg", "diet")
CASES = {
    **{method: Case(network("cnn8", method)) for method in METHODS},
    **{f"{method} float32": Case(network("cnn8", method), torch.float32) for method in METHODS[:3]},
    **{norm: Case(network("cnn8", "mpd-agl", norm=norm)) for norm in ("tebn", "tab", "mpbn")},
}


def check(folder: Path) -> Any:
    return checked(CASES)
