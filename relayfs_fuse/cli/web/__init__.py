"""The HTTP server of relayctl serve. What imports starlette and uvicorn is here alone: they are an extra."""
