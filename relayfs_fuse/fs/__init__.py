"""The file server, which shows the store as a file system; docs/design.md explains its parts."""
