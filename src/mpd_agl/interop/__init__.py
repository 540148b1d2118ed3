"""Networks to and from other programs."""
