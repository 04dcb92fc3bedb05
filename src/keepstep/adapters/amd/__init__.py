"""AMD's driver through its own library (``amdsmi``), behind the same port as NVIDIA's.

Nothing is imported here: the child goes through this package and must stay small."""
