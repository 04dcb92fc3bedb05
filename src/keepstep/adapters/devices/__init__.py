"""What the sources of all accelerator vendors share: a child that describes devices, and what its words mean over time."""
