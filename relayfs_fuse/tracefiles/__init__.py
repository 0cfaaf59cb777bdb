"""Files of traces: their metadata, and the lock of a trace's recorder."""
