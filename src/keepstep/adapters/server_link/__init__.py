"""The way to the server: addresses, sockets, TLS, credentials, and the one connection of launchers, agents and fronts."""
