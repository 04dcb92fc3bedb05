"""The server: the loop around the core, its clients, its journal. Decides nothing by itself."""
