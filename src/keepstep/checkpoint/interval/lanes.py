"""Who may restore now, and how fast, when many want to at once. Owns admission and shares; no clock, no I/O.

Every restore asks for a *token*. A token allows a rate until it expires; a holder renews it while it lives, so one that died
gives its share back by itself, and one whose token ran out must stop reading.

Who is next: by lane, then by what waiting costs per byte to fetch, then by who came first. A request climbs one lane for every
``aging_s`` it waits, and nobody passes the one at the head (but for urgent ones, in what is reserved for them): none starves.
How many at once: as many as get a useful rate each (few that finish beat many that crawl). How fast: weighted fair shares; what
one cannot use goes to the others.

The sum of all rates in force never exceeds the capacity, not even while shares change: a share is only given once the one that
it comes from has been confirmed smaller by its holder.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Lane = Literal["urgent", "normal", "background"]
"""urgent: a production job stands still. normal: any other restart. background: warming spares, checks, exports."""

_LEVELS: dict[Lane, int] = {"urgent": 2, "normal": 1, "background": 0}
_WEIGHTS: dict[Lane, int] = {"urgent": 8, "normal": 4, "background": 1}
_RAISE_BY = 8
"""Running shares are raised only by an eighth or more: a message to every holder at every change is not worth it."""
_HALVINGS = 64


class Capacity(Struct, frozen=True, kw_only=True):
    """What may be spent, and the rules."""

    bytes_s: int
    """Of the store, or of the link that they share."""
    useful_bytes_s: int
    """Below this rate a restore is not worth starting."""
    reserved_bytes_s: int = 0
    """Kept free of floors of other lanes, so that an urgent restore can begin at once. Idle, it speeds the others up."""
    token_s: float = 30.0
    aging_s: float = 300.0

    def __post_init__(self) -> None:
        if self.bytes_s < 1 or self.useful_bytes_s < 1 or not 0 <= self.reserved_bytes_s < self.bytes_s:
            raise ValueError(
                f"capacity {self.bytes_s} B/s, useful {self.useful_bytes_s} B/s, reserved {self.reserved_bytes_s} B/s: "
                "the first two must be above 0, and less than the capacity may be reserved"
            )
        if self.token_s <= 0 or self.aging_s <= 0:
            raise ValueError("tokens and aging need a time above 0")


class Request(Struct, frozen=True, kw_only=True):
    """A restore that waits."""

    id: str
    lane: Lane
    size_bytes: int
    asked_s: float
    limit_bytes_s: int
    """The most it can take."""
    cost_per_s: float = 1.0
    """What waiting costs: accelerators that stand idle, say."""


class Token(Struct, frozen=True, kw_only=True):
    """A restore that runs."""

    id: str
    """Of its request."""
    lane: Lane
    share_bytes_s: int
    """The rate in force: the holder may read this fast."""
    limit_bytes_s: int
    expires_s: float


class Wait(Struct, frozen=True, kw_only=True):
    """Why a request goes on waiting."""

    id: str
    ahead: int
    """Requests before it."""
    reason: str


class Decisions(Struct, frozen=True, kw_only=True):
    """What to do now. Applied in this order it never exceeds the capacity."""

    expired: tuple[str, ...]
    """Tokens that ran out: forget them. The holder may ask again."""
    lowered: tuple[Token, ...]
    """To be told to their holders. Replace the running token only when its holder confirmed."""
    granted: tuple[Token, ...]
    raised: tuple[Token, ...]
    """Replace the running token, then tell its holder."""
    waiting: tuple[Wait, ...]


def renew(token: Token, now_s: float, capacity: Capacity) -> Token:
    """A sign of life of its holder. Raises ValueError if the token has run out: its share may be another's by now."""
    if now_s >= token.expires_s:
        raise ValueError(
            f"the token of restore {token.id} ran out {now_s - token.expires_s:.0f} s ago: ask for a new one"
        )
    return replace(token, expires_s=now_s + capacity.token_s)


def admit(waiting: Sequence[Request], running: Sequence[Token], now_s: float, capacity: Capacity) -> Decisions:
    """Decide who begins, and everybody's rate. Level-triggered: call it at every change and every few seconds."""
    held = {token.id for token in running}
    alive = sorted((token for token in running if token.expires_s > now_s), key=lambda token: token.id)
    queue = ranked([request for request in waiting if request.id not in held], now_s, capacity)
    chosen, waits = _choose(queue, alive, capacity)
    targets = _shares([*alive, *(_token(request, 0, now_s, capacity) for request in chosen)], capacity)
    # What is in force stays in force until its holder confirms less.
    free = capacity.bytes_s - sum(token.share_bytes_s for token in alive)
    granted: list[Token] = []
    blocked = False
    for request in chosen:
        share = min(targets[request.id], free)
        blocked = blocked or share < min(_floor(request, capacity), targets[request.id])
        if blocked:
            waits.append(
                Wait(id=request.id, ahead=0, reason="admitted; waits until others have confirmed their lower rate")
            )
            continue
        granted.append(_token(request, share, now_s, capacity))
        free -= share
    raised: list[Token] = []
    for token in alive:
        share = min(targets[token.id], token.share_bytes_s + free)
        if free > 0 and (share - token.share_bytes_s) * _RAISE_BY >= max(token.share_bytes_s, 1):
            raised.append(replace(token, share_bytes_s=share))
            free -= share - token.share_bytes_s
    return Decisions(
        expired=tuple(sorted(token.id for token in running if token.expires_s <= now_s)),
        lowered=tuple(
            replace(token, share_bytes_s=targets[token.id])
            for token in alive
            if targets[token.id] < token.share_bytes_s
        ),
        granted=tuple(granted),
        raised=tuple(raised),
        waiting=tuple(sorted(waits, key=lambda wait: (wait.ahead, wait.id))),
    )


def ranked(waiting: Sequence[Request], now_s: float, capacity: Capacity) -> list[Request]:
    """In the order in which they are served."""

    def key(request: Request) -> tuple[int, float, float, str]:
        waited = int(max(0.0, now_s - request.asked_s) / capacity.aging_s)
        density = request.cost_per_s / max(request.size_bytes, 1)
        return (-_LEVELS[request.lane] - waited, -density, request.asked_s, request.id)

    return sorted(waiting, key=key)


def _choose(queue: Sequence[Request], alive: Sequence[Token], capacity: Capacity) -> tuple[list[Request], list[Wait]]:
    """Who fits, in order, by the useful rates of all who run. The first for whom there is no room stops all behind it."""
    taken = sum(_floor(token, capacity) for token in alive)
    others = sum(_floor(token, capacity) for token in alive if token.lane != "urgent")
    chosen: list[Request] = []
    waits: list[Wait] = []
    full = others_full = False
    for ahead, request in enumerate(queue):
        floor = _floor(request, capacity)
        urgent = request.lane == "urgent"
        if full:
            waits.append(Wait(id=request.id, ahead=ahead, reason="behind another that has no room yet"))
        elif taken and taken + floor > capacity.bytes_s:
            waits.append(Wait(id=request.id, ahead=ahead, reason="the running restores need all of the capacity"))
            full = True
        elif not urgent and (others_full or (others and others + floor > capacity.bytes_s - capacity.reserved_bytes_s)):
            # Those who keep it out are not urgent and come to an end, whatever urgent ones pass meanwhile: it cannot starve.
            waits.append(Wait(id=request.id, ahead=ahead, reason="what is left is reserved for urgent restores"))
            others_full = True
        else:
            chosen.append(request)
            taken += floor
            others += 0 if urgent else floor
    return chosen, waits


def _floor(who: Request | Token, capacity: Capacity) -> int:
    return max(1, min(capacity.useful_bytes_s, who.limit_bytes_s, capacity.bytes_s))


def _token(request: Request, share_bytes_s: int, now_s: float, capacity: Capacity) -> Token:
    return Token(
        id=request.id, lane=request.lane, share_bytes_s=share_bytes_s, limit_bytes_s=request.limit_bytes_s,
        expires_s=now_s + capacity.token_s,
    )  # fmt: skip


def _shares(tokens: Sequence[Token], capacity: Capacity) -> dict[str, int]:
    """Weighted fair rates between floor and limit, by id. Their sum is at most the capacity."""
    floors = {token.id: _floor(token, capacity) for token in tokens}
    needed = sum(floors.values())
    if needed >= capacity.bytes_s:
        return {name: floor * capacity.bytes_s // needed for name, floor in floors.items()}

    def at(rate: float) -> dict[str, int]:
        return {
            token.id: int(min(max(rate * _WEIGHTS[token.lane], floors[token.id]), max(token.limit_bytes_s, 1)))
            for token in tokens
        }

    low, high = 0.0, float(capacity.bytes_s)
    if sum(at(high).values()) <= capacity.bytes_s:
        return at(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(at(middle).values()) <= capacity.bytes_s:
            low = middle
        else:
            high = middle
    return at(low)
