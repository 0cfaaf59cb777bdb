"""The language of the control file, and what its commands do to channels; fs/traces does the trace commands."""
