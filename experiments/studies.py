"""Tables and figures by name, in the order in which they share most runs."""

from importlib import import_module
from typing import TYPE_CHECKING

from mpd_agl.errors import unknown_name

if TYPE_CHECKING:
    from experiments.study import Study

NAMES = (
    *("fig-availability", "fig-firing-rate", "table2", "table3", "fig-theorem1", "fig-affine"),
    *("fig-surrogates", "fig-robustness", "table1", "table4", "idea", "rivals"),
)


def get_study(name: str) -> "Study":
    """The experiment of that name, from the file of that name."""
    if name not in NAMES:
        raise unknown_name("experiment", name, NAMES)
    study: Study = import_module(f"experiments.{name.replace('-', '_')}").STUDY
    return study
