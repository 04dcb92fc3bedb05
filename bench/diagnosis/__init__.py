"""How good the diagnosis is: accuracy on labelled real cases, throughput, cost of the agent, time from line to quarantine."""
