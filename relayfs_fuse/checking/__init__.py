"""Checking what a store holds, without changing it: for relayctl check."""
