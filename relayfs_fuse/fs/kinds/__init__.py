"""What a channel may be made of (relay buffers, a ring, damaged memory), its statistics files, and open files."""
