"""Figure 7: thresholds, decays and architectures."""

from collections.abc import Sequence

from experiments.grouped_bars import grouped_bars
from experiments.quoted import ROBUSTNESS
from experiments.study import COMPARED, Group, Study, Variant, cells, find, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

THRESHOLDS, DECAYS = (0.5, 0.75, 1.0), (0.2, 0.5)
NETWORKS = {"resnet19": "ResNet-19", "resnet18": "ResNet-18", "vgg11": "VGG-11", "vgg16": "VGG-16"}
RECIPE = "cifar100-resnet19"


def variants(methods: Sequence[str]) -> list[Variant]:
    """A grid on ResNet-19, then other networks at v_th 0.5, tau 0.2. The paper names neither: both are a choice."""
    out: list[Variant] = []
    for v_th in THRESHOLDS:
        for tau in DECAYS:
            at = {"place": f"v_th {v_th:g}, tau {tau:g}", "v_th": f"{v_th:g}", "tau": f"{tau:g}"}
            out += per_method(RECIPE, methods, at, model__v_th=v_th, model__tau=tau)
    for name, shown in NETWORKS.items():
        if name != "resnet19":
            out += per_method(RECIPE, methods, {"place": shown, "network": shown}, model__name=name)
    return out


def show(groups: Sequence[Group]) -> PageSection:
    """Bars over the grid, bars over the networks, and a table."""
    methods = methods_of(groups)
    places = list(dict.fromkeys(g.variant.at["place"] for g in groups))
    rows = []
    for place in places:
        for method in methods:
            own = find(groups, method, place=place)
            assert own is not None
            quoted = ROBUSTNESS.get((method, own.variant.at.get("v_th", ""), own.variant.at.get("tau", "")))
            rows.append([place, label(method), *cells(groups, own, quoted, place=place)])
    grid = [p for p in places if p.startswith("v_th")]
    base = grid[0]
    networks = [base, *(p for p in places if p not in grid)]

    def values(chosen: Sequence[str]) -> dict[str, list[list[float]]]:
        return {m: [[*g.accuracy.values()] for p in chosen if (g := find(groups, m, place=p))] for m in methods}

    panels = [
        grouped_bars("fig-robustness-neuron", "Thresholds and decays, ResNet-19", grid, values(grid)),
        grouped_bars("fig-robustness-network", "Networks", ["ResNet-19", *networks[1:]], values(networks)),
    ]
    moved = {m: _range([g for g in groups if g.method == m and "v_th" in g.variant.at]) for m in methods}
    least, most = min(moved, key=lambda m: moved[m]), max(moved, key=lambda m: moved[m])
    sentence = (
        f"Over the grid the accuracy of {label(least)} moves least, by {100 * moved[least]:.2f} points, "
        f"that of {label(most)} most, by {100 * moved[most]:.2f}."
    )
    head = ("place", "method", "accuracy, last epoch", "best on test", "MPD-AGL minus this", "paper (quoted)")
    notes = ["The paper's text gives two of its values; the rest of its figure has no printed numbers."]
    return PageSection("fig-robustness", STUDY.title, sentence, panels, Table(head, rows, (2, 3, 4, 5)), notes)


def _range(groups: Sequence[Group]) -> float:
    means = [sum(g.accuracy.values()) / len(g.accuracy) for g in groups]
    return max(means) - min(means)


STUDY = Study(
    name="fig-robustness",
    title="Figure 7: robustness to threshold, decay and network, CIFAR-100, T=2",
    paper="From v_th 0.5 to 1.0 LSG loses 0.96 points and STBP-tdBN 2.71; MPD-AGL holds.",
    variants=variants,
    show=show,
    methods=COMPARED,
    cpu={"train.epochs": 2},
    smoke={"data.name": "mnist5k-dvs", "data.frame_size": 32},  # one set for all networks: VGGs need 32 x 32 pixels
)
