"""The process that evaluates the triggers of a mount's traces."""
