"""Run records as a page and as figures. Reads records only, never a model."""

from mpd_agl.report.page import build_page, write_figures
from mpd_agl.report.runs import Run, check_comparable, read_run

__all__ = ["Run", "build_page", "check_comparable", "read_run", "write_figures"]
