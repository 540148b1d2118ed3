"""`python -m mpd_agl` is `mpd-agl`."""

import sys

from mpd_agl.cli import main

sys.exit(main())
