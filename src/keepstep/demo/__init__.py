"""``keepstep demo``: one real job, one fault after the other, and the proof. Owns the show; decides nothing of a recovery."""
