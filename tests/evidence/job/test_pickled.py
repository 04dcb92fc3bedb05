"""The reader of pickles of plain data: agrees with the real one on data, and runs nothing."""

import pickle
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.evidence.job.pickled import Refused, loads

_KEYS = st.text(max_size=8) | st.integers() | st.booleans()
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(_PLAIN, st.integers(0, 5))
@settings(max_examples=120, deadline=None)
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [_Runs(), OrderedDict(a=1), {"entries": [print]}, {1, 2}, object()])
def test_a_pickle_that_would_call_something_is_refused_as_hostile(
    value: object, protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(value, set) and protocol >= 4:
        with pytest.raises(Refused):
            loads(pickle.dumps(value, protocol))
        return
    with pytest.raises(Refused) as refused:
        loads(pickle.dumps(value, protocol))
    assert refused.value.hostile
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04}q\x00",
        b"(((.",
        b"a.",
        b"h\x05.",
        b"\x8c\xffab.",
        b"I12x\n.",
        b"]" * 300 + b"a" * 299 + b".",
    ],
)
def test_bytes_that_are_no_pickle_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        loads(data)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Refused):
        loads(pickle.dumps(endless))


def test_nested_references_do_not_blow_up() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value] * 8
    with pytest.raises(Refused):
        loads(pickle.dumps(value))


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (b"", b"\x80\x04\x95"):
        try:
            loads(start + data)
        except Refused:
            pass
