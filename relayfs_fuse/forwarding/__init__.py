"""Recordings that are sent to other machines through NATS JetStream, and received there: see names.py."""
