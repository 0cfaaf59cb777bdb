"""The server of LTTng's live protocol, `relayctl live`: viewers see events of traces while programs write them."""
