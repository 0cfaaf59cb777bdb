"""Traces on disk: what relayctl record and snapshot do."""
