"""How a network describes itself layer by layer, to whoever lays it out in another form (plans, NIR)."""

from typing import Protocol, TypeVar

from torch import nn

from mpd_agl.nn import Current, Readout

Flow = TypeVar("Flow")
"""What goes from layer to layer; each builder has its own."""


class Builder(Protocol[Flow]):
    """One method per kind of layer. Each takes what flows in and gives what flows out."""

    def block(
        self,
        name: str,
        block: nn.Module,
        flow: Flow,
        *,
        residual: Flow | None = None,
        current_input: Flow | None = None,
    ) -> Flow:
        """Synapse and neuron; `residual` is added to the spikes, the block's current of `current_input` before it."""

    def current(self, name: str, current: Current, flow: Flow, *, added_to: Flow | None = None) -> Flow:
        """A normalised current, added to another one."""

    def pool(self, flow: Flow) -> Flow:
        """2x2 averages."""

    def mean(self, flow: Flow) -> Flow:
        """Averages over the map, flattened."""

    def flat(self, flow: Flow) -> Flow:
        """The map, flattened."""

    def gate(self, name: str, gate: nn.Module, flow: Flow) -> Flow:
        """A gate."""

    def readout(self, readout: Readout, flow: Flow) -> Flow:
        """The logits of a timestep."""
