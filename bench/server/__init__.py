"""What one server carries: agents, orders, entries, questions; each beside a limit or a peer, in the same run."""
