"""What relayctl top shows on a terminal: all that needs textual."""
