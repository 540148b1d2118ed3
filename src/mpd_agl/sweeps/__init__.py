"""Sweeps: a search over fields of the configuration, one ordinary run per trial."""
