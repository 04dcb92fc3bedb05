"""The launcher: one per node and job. Starts, watches and ends the ranks of one job on one node; decides nothing."""
