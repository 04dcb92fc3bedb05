"""Recovery beside other systems: one job, one fault per run, everything measured from the job's own step log."""
