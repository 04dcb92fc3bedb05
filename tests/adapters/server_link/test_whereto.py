"""Which server is dialled, and when: addresses, turns, hints, pauses. No sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.adapters.server_link.address import (
    Address,
    is_loopback,
    parse_address,
    parse_addresses,
)
from keepstep.adapters.server_link.renewal import renew_in_s
from keepstep.adapters.server_link.route import HOPS_MAX, Route

A, B, C = parse_addresses("tls:a:1,tls:b:2,tls:c:3")


# ---- addresses


@pytest.mark.parametrize(
    "text",
    ["unix:/run/x.sock", "tcp:127.0.0.1:80", "tcp:[::1]:80", "tcp:localhost:1", "tls:h.example:443", "tls:[fe::1]:9"],
)
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp:",
        "tcp:localhost",
        "tls:h:70000",
        "tls::1",
        "tls:h:٣",
        "unix:",
        "http://x",
        "unix:" + "x" * 200,
        "tls:h:-1",
    ],
)
def test_what_is_no_address_is_told_what_one_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match=r"tls:host:port|shorter"):
        parse_address(text)


@pytest.mark.parametrize("host", ["h", "10.0.0.1", "0.0.0.0", "[::]", "127.0.0.1.example.com", "localhost.evil"])
def test_words_in_the_clear_stay_on_the_machine(host: str) -> None:
    with pytest.raises(ValueError, match="tls:"):
        parse_address(f"tcp:{host}:7")
    assert parse_address(f"tls:{host}:7").tls


def test_several_addresses_keep_their_order_and_come_once() -> None:
    known = parse_addresses("tls:a:1, unix:/x ,tls:a:1,tcp:127.0.0.1:2")
    assert [str(one) for one in known] == ["tls:a:1", "unix:/x", "tcp:127.0.0.1:2"]
    with pytest.raises(ValueError, match="--server"):
        parse_addresses("tls:a:1,", "--server")
    assert is_loopback("127.8.8.8") and is_loopback("::1") and not is_loopback("::2")


# ---- whose turn it is


def test_each_is_tried_in_turn_and_a_round_ends_with_a_pause() -> None:
    route, known, dialled, pauses = Route(), (A, B, C), [], []
    for _ in range(6):
        dialled.append(route.next(known))
        pauses.append(route.failed(known))
    assert dialled == [A, B, C, A, B, C]
    assert pauses == [False, False, True] * 2


def test_whoever_took_us_is_asked_first_again() -> None:
    route, known = Route(), (A, B, C)
    route.failed(known)
    assert route.next(known) == B
    route.arrived()
    assert route.next(known) == B


def test_a_follower_names_the_leader_and_a_dead_leader_is_left() -> None:
    route, known = Route(), (A, B)
    assert route.sent_on("tls:z:9", A)
    assert route.next(known) == parse_address("tls:z:9")
    assert not route.failed(known)
    assert route.next(known) == B


@pytest.mark.parametrize("leader", ["", "nonsense", "tls:a:1", "unix:/x", "tcp:127.0.0.1:1", "tcp:elsewhere:1"])
def test_hints_that_lead_nowhere_or_out_of_tls_are_not_followed(leader: str) -> None:
    assert not Route().sent_on(leader, A)


@given(st.lists(st.sampled_from(["failed", "on", "arrived"]), max_size=80))
def test_never_more_hops_than_allowed_between_two_pauses(events: list[str]) -> None:
    route, known, hops, failures = Route(), (A, B), 0, 0
    for event in events:
        address = route.next(known)
        assert isinstance(address, Address)
        if event == "on":
            if route.sent_on("tls:z:1", B):
                hops += 1
            elif route.failed(known):
                hops = failures = 0
            else:
                failures += 1
        elif event == "arrived":
            route.arrived()
            hops = failures = 0
        elif route.failed(known):
            hops = failures = 0
        else:
            failures += 1
        assert hops <= HOPS_MAX and failures < len(known)


# ---- when


@given(st.floats(0, 1e7), st.floats(60, 1e7), st.floats(0, 1, exclude_max=True))
def test_a_certificate_is_renewed_in_the_last_half_of_its_life_and_not_in_its_last_third(
    expires_in_s: float, life_s: float, drawn: float
) -> None:
    left_s = expires_in_s - renew_in_s(expires_in_s, life_s, drawn)
    assert left_s <= max(expires_in_s, life_s * 0.44)
    assert left_s >= min(expires_in_s, life_s * 0.33)
