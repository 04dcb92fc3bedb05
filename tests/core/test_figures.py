"""Whole numbers as programs print them."""

import pytest

from keepstep.core.figures import whole


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("0017", 17), ("9" * 20, 10**20 - 1)])
def test_decimal_digits_are_a_number(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "0x10", "²", "٣", "1_000", "9" * 21, "9" * 5000])
def test_anything_else_is_none_and_nothing_raises(text: str) -> None:
    assert whole(text) is None
