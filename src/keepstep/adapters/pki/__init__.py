"""Keys and certificates for TLS: the built-in authority, requests to it, identities on disk; all through ``cryptography``."""
