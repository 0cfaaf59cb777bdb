"""The types of channels (relay buffers, rings, damaged ones), their statistics files, and open files of the mount."""
