"""Webhooks: notices as signed HTTP requests, and the signal of life that a watchdog elsewhere listens for."""
