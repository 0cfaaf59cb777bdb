"""The handlers of FUSE requests, and what sleeps for them."""
