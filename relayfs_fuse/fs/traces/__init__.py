"""The traces of a mount."""
