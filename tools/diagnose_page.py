"""Makes the pictures and the list of problems on docs/diagnose.md: networks broken by hand, as `diagnose` sees them.

python -m tools.diagnose_page
"""

import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from mpd_agl.diagnosis import Diagnosis, diagnose
from mpd_agl.diagnosis.checks import Finding
from mpd_agl.models import create_model
from mpd_agl.nn import LIF

ROOT = Path(__file__).parent.parent
PAGE, PICTURES = ROOT / "docs/diagnose.md", "results/illness"
BEGIN, END = "<!-- problems: begin -->", "<!-- problems: end -->"


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(32, 3, 16, 16, generator=g), torch.arange(32) % 10


def cnn8(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return create_model("cnn8", **{"width_mult": 0.125, "image_size": 16, "backend": "eager", **options})


def plain() -> nn.Module:
    torch.manual_seed(0)
    return create_model("plain", depth=14, image_size=16, method="stbp-tdbn", kappa=2.0, backend="eager")


class Plain(nn.Module):
    """Linear layers and neurons without a norm, as many write them first."""

    def __init__(self, tau: float, gain: float, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.synapses = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.neurons = nn.ModuleList(LIF(tau=tau, v_th=1.0, backend="eager") for _ in range(layers))
        for synapse in self.synapses:
            nn.init.normal_(synapse.weight, std=gain / width**0.5)

    def forward(self, x_TNF: Tensor) -> Tensor:
        for synapse, neuron in zip(self.synapses, self.neurons, strict=True):
            x_TNF = neuron(synapse(x_TNF))
        return x_TNF


def drive() -> Tensor:
    return torch.randn(8, 32, 64, generator=torch.Generator().manual_seed(2))


def biased(value: float, *layers: int) -> Diagnosis:
    net = cnn8()
    for k in layers:
        nn.init.constant_(net.get_submodule(f"conv{k}").norm.bias, value)
    return diagnose(net, *batch())


def half_dead() -> Diagnosis:
    net = cnn8(width_mult=0.25)
    for k in (3, 4):
        bias_C = net.get_submodule(f"conv{k}").norm.bias
        with torch.no_grad():
            bias_C[: bias_C.numel() // 2] = -3.0
    return diagnose(net, *batch())


class Case(NamedTuple):
    file: str
    problem: str
    look: str
    make: Callable[[], Diagnosis]


CASES = (
    Case("healthy", "", "Every layer's potentials reach the threshold, the window holds about half of them, the "
         "gradient keeps its size from layer to layer.", lambda: diagnose(cnn8(), *batch())),
    Case("silent", "silent", "From one layer on there are no spikes at all, and no gradient comes back.",
         lambda: biased(-4.0, 5, 6, 7)),
    Case("far", "potentials far below the threshold", "Without a norm the potentials shrink from layer to layer: the "
         "heap stands left of the dotted threshold.", lambda: diagnose(Plain(0.5, 0.8), drive())),
    Case("saturated", "saturated", "Potentials lie above the threshold whatever the input is; the rates stand at 100 "
         "%.", lambda: biased(4.0, 3, 4)),
    Case("nobody", "window that holds nobody", "The shaded window is a hairline: potentials cross the threshold, but "
         "next to none lie in it.", lambda: diagnose(cnn8(method="stbp-tdbn", kappa=0.005), *batch())),
    Case("everybody", "window that holds everybody", "The window covers every potential, so the gradient cannot tell "
         "who was about to fire.", lambda: diagnose(cnn8(method="stbp-tdbn", v_th=0.1, kappa=2.0), *batch())),
    Case("vanishing", "gradient vanishes through depth", "The curve at the right falls by orders of magnitude towards "
         "the first layer.", lambda: diagnose(plain(), *batch())),
    Case("dead", "dead channels", "The rates look well, but half of the channels of two layers never fire.", half_dead),
    Case("forgets", "leak that forgets everything", "The potentials look well: what is wrong is the leak, which keeps "
         "nothing from step to step.", lambda: diagnose(Plain(0.005, 2.0), drive())),
    Case("keeps", "leak that keeps everything", "Potentials spread with every step, and no window fits all of them.",
         lambda: diagnose(Plain(0.995, 0.5), drive())),
)  # fmt: skip


def main() -> None:
    lines, folder = [], PAGE.parent / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = case.make()
        finding = next((f for f in found.findings if f.illness == case.problem), None)
        if (finding is None) != (case.problem == ""):
            raise SystemExit(f"{case.file}: expected {case.problem!r}, got {[f.illness for f in found.findings]}")
        found.plot(folder / f"{case.file}.png")
        small(folder / f"{case.file}.png")
        lines += section(case, finding)
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text("\n".join([head + BEGIN, *lines, END + rest.partition(END)[2]]), encoding="utf-8")


def small(path: Path) -> None:
    """A picture in 48 colours: a third of the bytes, and nothing that the eye misses."""
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(48, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def section(case: Case, finding: Finding | None) -> list[str]:
    title = case.problem[:1].upper() + case.problem[1:] if case.problem else "A healthy network"
    out = [f"### {title}", ""]
    if finding is not None:
        out += wrap(f"**What `diagnose` says**, {finding.where}: {finding.figure}. {finding.why}")
        out += wrap(f"**The fix**: {code(finding.cure)}.")
    out += wrap(f"**In the picture**: {case.look}")
    return [*out, f"![{title}: potentials, firing rates and gradients per layer]({PICTURES}/{case.file}.png)", ""]


def code(fix: str) -> str:
    """A fix that is a line of code, set as code."""
    return f"`{fix}`" if "(" in fix and "`" not in fix else fix


def wrap(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False), ""]


if __name__ == "__main__":
    main()
