"""The deterministic simulator: the engine of the server over a fleet that exists in memory only. See docs/explanation."""
