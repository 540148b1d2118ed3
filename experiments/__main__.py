"""`python -m experiments`: see `command`."""

import sys

from experiments.command import run
from mpd_agl.cli import call

args = [a for a in sys.argv[1:] if a != "--debug"]
sys.exit(call(run, args, then="Finished runs are kept: the same command continues.", debug="--debug" in sys.argv))
