"""What a policy file may say: nonsense that would silently switch something off is refused, with its key."""

import pytest

from keepstep.server.policy_file import read_policy


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hours_utc = [8, 25]", "drills.hours_utc: Expected `int` <= 24"),
        ("hours_utc = [-1, 5]", "drills.hours_utc: Expected `int` >= 0"),
        ("detect_s = nan", "drills.detect_s is nan"),
        ("every_s = -1.0", "drills.every_s is -1.0; it cannot be negative"),
        ('kinds = ["reset"]', "drills.kinds: Invalid enum value 'reset'"),
    ],
)
def test_what_drills_cannot_keep_to_is_refused(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        read_policy(f"[drills]\n{line}\n")


def test_hours_may_go_over_midnight() -> None:
    assert read_policy("[drills]\nhours_utc = [22, 5]\n").drills.hours_utc == (22, 5)
