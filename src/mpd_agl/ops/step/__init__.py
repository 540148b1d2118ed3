"""Norm, neuron and surrogate as one step: one function, one file per implementation."""
