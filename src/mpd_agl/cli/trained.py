"""The trained network that a command was asked for: a run's, or one by its name."""

import sys
from pathlib import Path

from mpd_agl.errors import InputError
from mpd_agl.train.load_run import Trained, load_pretrained, load_run


def load_trained(run: Path | None, *, pretrained: str = "", weights: str = "last", factory: str = "") -> Trained:
    """The network of a run folder, or of `--pretrained`; damaged checkpoints are reported on stderr."""
    if pretrained and (weights != "last" or factory):
        raise InputError(
            "--weights and --factory are for runs, and --pretrained names a trained network. Leave them out."
        )
    if pretrained:
        return load_pretrained(pretrained)
    assert run is not None
    return load_run(run, weights, lambda text: print(f"mpd-agl: {text}", file=sys.stderr), factory=factory)
