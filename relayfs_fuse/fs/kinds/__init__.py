"""What a channel may be made of: relay buffers, a ring, or damaged memory."""
