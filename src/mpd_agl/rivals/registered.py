"""Everything that rivals register, by name."""

from functools import partial

from mpd_agl.core import register_surrogate
from mpd_agl.models.gates import register_gate
from mpd_agl.models.registry import register_model
from mpd_agl.nn import LIF, FixedWidth, Method, NormKind, register_method, register_norm
from mpd_agl.rivals.asgl import ASGLNeuron
from mpd_agl.rivals.atgo import AtgoNeuron
from mpd_agl.rivals.attention import TCJA
from mpd_agl.rivals.mpbn import mpbn_neuron, mpbn_norm
from mpd_agl.rivals.ms_resnet import ms_resnet18, ms_resnet34
from mpd_agl.rivals.neurons import MPRNeuron, diet_neuron
from mpd_agl.rivals.statten import SpikeTransformer
from mpd_agl.rivals.step_norms import tab, tebn
from mpd_agl.rivals.surrogates import MPR, S2NN, ArctanPeak, FastSigmoid
from mpd_agl.rivals.trsg import MPInitTrSG, TrSGNeuron
from mpd_agl.rivals.widths import (
    DeepTAGEWidth,
    LearnableWidth,
    RelativeWidth,
    ScheduledWidth,
    SingleStepWidth,
    SlopeWidth,
)


def _relative() -> RelativeWidth:
    return RelativeWidth()


def _diet() -> RelativeWidth:
    return RelativeWidth(gain=0.3)


for surrogate in (ArctanPeak(), FastSigmoid(), S2NN(), MPR()):
    register_surrogate(surrogate)

for norm in (
    NormKind(name="tebn", norm=tebn, about="batch norm with a learnable scale per timestep (Duan et al. 2022)"),
    NormKind(name="tab", norm=tab, about="step t normalised over the steps 1 to t (Jiang et al. 2024)"),
    NormKind(name="mpbn", norm=mpbn_norm, neuron=mpbn_neuron, about="a second norm on the potential (Guo et al. 2023)"),
):
    register_norm(norm)

for method in (
    Method(name="psg", neuron=LIF, width=LearnableWidth, about="a learnable width per layer (Wang et al. 2025)"),
    Method(
        name="asgl",
        neuron=ASGLNeuron,
        width=SlopeWidth,
        surrogate="rectangular",
        replaces_neuron=True,
        about="learnable slope, noisy soft outputs in training (Wang et al. 2023)",
    ),
    Method(
        name="deeptage",
        neuron=LIF,
        width=DeepTAGEWidth,
        surrogate="arctan-peak",
        about="width from the norms of the potentials (Liu et al. 2025)",
    ),
    Method(
        name="ds-atgo",
        neuron=AtgoNeuron,
        width=FixedWidth,
        replaces_neuron=True,
        about="threshold mean + std of the batch's potentials, width from it (Jiang et al. 2026)",
    ),
    Method(
        name="ds-atgo-sigma",
        neuron=partial(AtgoNeuron, form="sigma"),
        width=FixedWidth,
        replaces_neuron=True,
        about="ds-atgo with the width of its published code, from std (Jiang et al. 2026)",
    ),
    Method(
        name="trsg",
        neuron=TrSGNeuron,
        width=_relative,
        surrogate="rectangular",
        replaces_neuron=True,
        about="learnable threshold softplus(p), width v_th, output v_th s, soft reset (Kook et al. 2026)",
    ),
    Method(
        name="mp-init-trsg",
        neuron=MPInitTrSG,
        width=_relative,
        surrogate="rectangular",
        replaces_neuron=True,
        about="trsg with sequences that start at a learnt potential (Kook et al. 2026)",
    ),
    Method(
        name="mpr",
        neuron=MPRNeuron,
        width=FixedWidth,
        surrogate="mpr",
        replaces_neuron=True,
        about="potential rectified before firing, soft reset by 1 (Guo et al. 2022)",
    ),
    Method(
        name="diet",
        neuron=diet_neuron,
        width=_diet,
        surrogate="triangular",
        replaces_neuron=True,
        about="learnable leak and threshold, surrogate of v/v_th, soft reset (Rathi and Roy 2020)",
    ),
    Method(
        name="slope-schedule",
        neuron=LIF,
        width=ScheduledWidth,
        surrogate="fast-sigmoid",
        about="slope from 1 to 100 over the training (Van den Berghe et al. 2025)",
    ),
    Method(
        name="s2nn",
        neuron=LIF,
        width=SingleStepWidth,
        surrogate="s2nn",
        max_steps=1,
        about="the surrogate of single-step networks, T = 1 (Suetake et al. 2023)",
    ),
):
    register_method(method)

register_gate("tcja", TCJA)
_CIFAR_T4 = {"num_steps": 4}
register_model(
    "ms-resnet18", ms_resnet18, defaults=_CIFAR_T4, about="membrane shortcuts: currents add up (Hu et al. 2024)"
)
register_model("ms-resnet34", ms_resnet34, defaults=_CIFAR_T4, about="the same, 3-4-6-3")
register_model(
    "statten", SpikeTransformer, defaults=_CIFAR_T4, about="spike-driven transformer, STAtten (Lee et al. 2025)"
)
