"""Traces as files: their metadata, and who records them."""
