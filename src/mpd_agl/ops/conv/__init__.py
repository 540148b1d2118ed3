"""Convolutions and linear layers: dense, event-driven, in Winograd's form, chosen by a written rule."""
