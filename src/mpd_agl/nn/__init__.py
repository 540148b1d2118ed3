"""The nn room."""
