"""NVIDIA's driver through its own library, as a source of signals. The library runs in a child that can be killed.

Nothing is imported here: the child goes through this package and must stay small."""
