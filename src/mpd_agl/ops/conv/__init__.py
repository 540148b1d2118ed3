"""Convolutions of spikes: dense, event-driven and Winograd's form."""
