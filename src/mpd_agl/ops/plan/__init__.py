"""Inference plans: a folded network answered by one native call."""
