"""`conv_impl = auto` in a run: when layers choose, and how choices are kept for a resumed run.

Another way of computing changes roundings, and the choice follows the share of active inputs. So layers choose only at
the steps named here. What was chosen goes at once into `convs.json` of the run's folder and into every checkpoint. A
resumed run takes the choices of its checkpoint, and at a step that is already in the file takes what stands there. Of
several processes all take the first one's choices.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.nn import Choice, EventLayer, event_layers
from mpd_agl.records import canonical, explain, write_atomic
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.observe import Observation

FILE = "convs.json"
FIRST = (0, 100)
EVERY = 1000


def due(step: int) -> bool:
    """Whether layers choose at this step: at the start, once spikes have settled, then once in a while."""
    return step in FIRST or step % EVERY == 0


class ConvChoices:
    """An observer that sets and keeps what each layer takes. The first network trains; the others follow it."""

    def __init__(self, nets: Sequence[nn.Module], folder: Path, ranks: Ranks = ALONE) -> None:
        self.path, self.ranks = folder / FILE, ranks
        self.layers: list[dict[str, EventLayer]] = [event_layers(net) for net in nets]
        for layer in self._all():
            layer.every = 0
            layer.agree = self._agree if ranks.world > 1 else None
        self.measured: list[dict[str, Any]] = _from_first(ranks, _read(self.path) if ranks.first else [])
        self._measuring = False

    def _agree(self, own: Choice) -> Choice:
        return Choice(**_from_first(self.ranks, own.to_dict()))

    def _all(self) -> list[EventLayer]:
        return [layer for found in self.layers for layer in found.values()]

    def _set(self, choices: dict[str, Any]) -> None:
        for found in self.layers:
            for name, layer in found.items():
                layer.choice = Choice(**choices[name]) if name in choices else None

    def _now(self) -> dict[str, Any]:
        return {n: layer.choice.to_dict() for n, layer in self.layers[0].items() if layer.choice is not None}

    def before(self, step: int) -> bool:
        """Take what is known for this step, or let the layers choose in its forward pass."""
        known = [m["layers"] for m in self.measured if m["step"] == step]
        self._measuring = due(step) and not known
        if known or self._measuring:
            self._set(known[0] if known else {})
        return self._measuring

    def after(self, step: int) -> Observation | None:
        """Write down what was chosen."""
        if self._measuring:
            self.measured.append({"step": step, "layers": self._now()})
            if self.ranks.first:
                self._write()
            self._set(self.measured[-1]["layers"])
            self._measuring = False
        return None

    def _write(self) -> None:
        try:
            write_atomic(self.path, canonical(self.measured))
        except OSError as error:
            raise explain(error, self.path, "The last checkpoint stands.") from error

    def state(self) -> dict[str, Any]:
        """The choices that stand."""
        return self._now()

    def restore(self, state: dict[str, Any]) -> None:
        """Back to them."""
        self._set(state)


def _from_first(ranks: Ranks, value: Any) -> Any:
    """Rank 0's value, on all ranks."""
    return value if ranks.world == 1 else json.loads(ranks.from_first(canonical(value)))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for entry in found:
            for choice in entry["layers"].values():
                Choice(**choice)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, InputError) as error:
        raise InputError(
            f"{path} is damaged or of another version of mpd-agl ({error}). Start a new run with another --name."
        ) from None
    return list(found)
