"""Recordings that are sent to other machines through NATS JetStream: see names.py."""
