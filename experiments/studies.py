"""Tables, figures and studies by name, in the order in which they share most runs."""

from experiments import (
    depth,
    descent,
    fig_affine,
    fig_availability,
    fig_firing_rate,
    fig_robustness,
    fig_surrogates,
    fig_theorem1,
    idea,
    ridge,
    rivals,
    stress,
    table1,
    table2,
    table3,
    table4,
)
from experiments.study import Study
from mpd_agl.errors import unknown_name

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        fig_availability,
        fig_firing_rate,
        table2,
        table3,
        fig_theorem1,
        fig_affine,
        fig_surrogates,
        fig_robustness,
        table1,
        table4,
        ridge,
        depth,
        stress,
        descent,
        idea,
        rivals,
    )
}


def get_study(name: str) -> Study:
    """The experiment of that name."""
    if name not in STUDIES:
        raise unknown_name("experiment", name, STUDIES)
    return STUDIES[name]
