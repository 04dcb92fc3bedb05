"""The command line: thin commands over the server's read side and its wire. Decides nothing."""
