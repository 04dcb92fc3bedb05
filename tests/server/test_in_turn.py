"""Replies carry no number: a client gets them in the order of its questions, however long each takes."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from keepstep.server.connection import Connection
from keepstep.server.in_turn import WAITING_MAX, InTurn
from keepstep.wire.messages import Message, Reply


class Client(Connection):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.replies: list[object] = []
        self.dropped = ""

    def send(self, message: Message) -> None:
        assert isinstance(message, Reply)
        self.replies.append(msgspec.msgpack.decode(message.body))

    def drop(self, reason: str, *, flush: bool = True) -> None:
        self.dropped = reason


def reply(body: object) -> Reply:
    return Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(body)))


async def after(ready: asyncio.Event, body: object) -> Reply:
    await ready.wait()
    return reply(body)


async def at_once(body: object) -> Reply:
    return reply(body)


async def fails() -> Reply:
    raise TypeError("a bug of ours")


def here(scene: Callable[[InTurn], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60.0):
            await scene(InTurn())

    asyncio.run(whole())


def test_a_quick_answer_waits_for_the_slow_one_before_it_and_for_nobody_elses() -> None:
    async def scene(answers: InTurn) -> None:
        one, two, ready = Client(), Client(), asyncio.Event()
        answers.answer(one, after(ready, 1))
        for body in (2, 3):
            answers.answer(one, at_once(body))
        answers.answer(two, at_once(9))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (one.replies, two.replies) == ([], [9])
        ready.set()
        await answers.quiet()
        assert one.replies == [1, 2, 3]
        answers.answer(one, at_once(4))
        await answers.quiet()
        assert one.replies == [1, 2, 3, 4]

    here(scene)


def test_whoever_has_too_much_waiting_is_cut_off() -> None:
    async def scene(answers: InTurn) -> None:
        client, ready = Client(), asyncio.Event()
        for body in range(WAITING_MAX):
            answers.answer(client, after(ready, body))
        assert not client.dropped
        answers.answer(client, at_once("more"))
        assert "wait for their answers" in client.dropped
        ready.set()
        await answers.quiet()
        assert client.replies == list(range(WAITING_MAX))

    here(scene)


def test_a_bug_costs_the_client_its_connection_and_not_an_endless_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(answers: InTurn) -> None:
        client = Client()
        answers.answer(client, fails())
        await answers.quiet()
        assert client.dropped and not client.replies

    here(scene)
    assert "a bug of ours" in caplog.text
