"""The file server: a view of the store."""
