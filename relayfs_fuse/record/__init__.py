"""Traces on disk: recordings and snapshots of relayctl."""
