"""Reading a trace's buffers in the store: for the recorder, `relayctl view` and the file server."""
