"""Parsing the commands of `control`, and carrying out those about channels; those about traces are in fs/traces."""
