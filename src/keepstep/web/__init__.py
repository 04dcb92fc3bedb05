"""The HTTP side of the server: API, live events, dashboard. Runs in the server's event loop; decides nothing."""
