"""Drives, arrays and mounts of this node."""
