"""The traces of a mount: their registry, the processes that write to them, and the tasks that keep them up to date."""
