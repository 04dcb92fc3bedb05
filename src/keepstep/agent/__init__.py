"""The node agent (``keepstep agent``): watches hardware, kernel, network and dependencies of one node, and tells the server."""
