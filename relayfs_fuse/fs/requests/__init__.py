"""The handlers of FUSE requests, and the tasks that wait for buffers and for other users on their behalf."""
