"""The control file: its language, and what its commands do."""
