"""`python -m benchmarks`: see `command`."""

import sys

from benchmarks.command import run
from mpd_agl.cli import call

args = [a for a in sys.argv[1:] if a != "--debug"]
sys.exit(call(run, args, then="", debug="--debug" in sys.argv))
