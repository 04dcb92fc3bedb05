"""The programs that are broken. SCENARIOS are those of the library, with the faults that each is for."""

ALONE = ("kill", "space", "error", "lost answer", "short", "look", "flip", "power", "sync", "resume")
TWO = ("pause", "race")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "saves:Saves": (*ALONE, *TWO),
    "saves:Ranks": ALONE,
    "saves:First": (*ALONE, *TWO),
    "saves:Pair": TWO,
    "saves:Reader": ("pause", "look", "flip", "short"),
}
