"""Review: what faults cost, what recovery took, which rules were right, from records of what is over. Pure."""
