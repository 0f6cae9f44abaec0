"""Checks of aiocoap against a server with demo resources, and against one with workers; the last line of output confirms
that all of them succeeded.

Usage: client.py coap://HOST:PORT coap://HOST:PORT
"""

import asyncio
import sys

from aiocoap import CHANGED, CONTENT, CREATED, DELETE, DELETED, GET, POST, PUT, VALID, Context, Message, Unreliable
from aiocoap.numbers.codes import (
    BAD_OPTION,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
)
from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.optiontypes import OpaqueOption

WELCOME = b"welcome to the plugtest"


def pattern(size):
    return bytes(ord("a") + at // 16 % 26 for at in range(size))


class Client:
    def __init__(self, context, base):
        self.context, self.base = context, base

    async def ask(self, code, path, payload=b"", **options):
        message = Message(code=code, uri=self.base + path, payload=payload, **options)
        return await self.context.request(message).response

    async def expect(self, expected, code, path, payload=b"", **options):
        response = await self.ask(code, path, payload, **options)
        assert response.code == expected, f"{code} {path}: {response.code}, not {expected}"
        return response


async def methods(client):
    response = await client.expect(CONTENT, GET, "/test")
    assert response.payload == WELCOME and response.opt.content_format == 0
    response = await client.expect(CONTENT, GET, "/test", transport_tuning=Unreliable)
    assert response.payload == WELCOME
    response = await client.expect(CREATED, POST, "/test", b"x")
    assert response.opt.location_path == ("location1", "location2", "location3")
    await client.expect(CHANGED, PUT, "/test", b"x")
    await client.expect(CHANGED, PUT, "/test")
    response = await client.expect(DELETED, DELETE, "/test")
    assert response.payload == b""
    response = await client.expect(CONTENT, GET, "/query?first=1&second=2")
    assert response.payload == b"first=1&second=2"
    response = await client.expect(CONTENT, GET, "/.well-known/core?rt=block")
    assert response.payload.count(b"<") == 4


async def blocks(client):
    assert len((await client.expect(CONTENT, GET, "/large")).payload) == 1700
    for size in (1, 1024, 1025, 50_000):
        await client.expect(CHANGED, PUT, "/large-update", pattern(size))
        response = await client.expect(CONTENT, GET, "/large-update")
        assert response.payload == pattern(size), f"{size}: {len(response.payload)}"
    response = await client.expect(CHANGED, POST, "/large-post", pattern(5000))
    assert response.payload == pattern(5000).upper()


async def conditions(client):
    etag = (await client.expect(CONTENT, GET, "/validate")).opt.etag
    message = Message(code=GET, uri=client.base + "/validate")
    message.opt.etags = [etag]
    assert (await client.context.request(message).response).code == VALID
    for expected in (CREATED, PRECONDITION_FAILED):
        message = Message(code=PUT, uri=client.base + "/create1", payload=b"one")
        message.opt.if_none_match = True
        response = await client.context.request(message).response
        assert response.code == expected, f"{response.code}, not {expected}"


async def errors(client):
    await client.expect(NOT_FOUND, GET, "/nothing")
    await client.expect(METHOD_NOT_ALLOWED, POST, "/large")
    message = Message(code=GET, uri=client.base + "/multi-format", accept=50)
    assert (await client.context.request(message).response).code == NOT_ACCEPTABLE
    message = Message(code=GET, uri=client.base + "/test")
    message.opt.add_option(OpaqueOption(OptionNumber(65001), b"x"))
    assert (await client.context.request(message).response).code == BAD_OPTION
    assert (await client.expect(CONTENT, GET, "/test")).payload == WELCOME


async def observation(client):
    """States arrive in order; a large one in blocks; none after the end."""
    for path, states in (("/obs", (b"first", b"second")), ("/obs-large", (pattern(3000), pattern(2000)))):
        await client.expect(CHANGED, PUT, path, b"initial")
        request = client.context.request(Message(code=GET, uri=client.base + path, observe=0))
        assert (await request.response).payload == b"initial"
        notifications = aiter(request.observation)
        for state in states:
            await client.expect(CHANGED, PUT, path, state)
            while (received := (await anext(notifications)).payload) != state:
                assert received == b"initial", f"{path}: {len(received)} bytes"
        request.observation.cancel()


async def workers(client):
    pid = (await client.expect(CONTENT, GET, "/sleep/1500")).payload
    assert int(pid) > 0, pid
    assert (await client.expect(CONTENT, GET, "/sized/50000")).payload == bytes(at % 251 for at in range(50_000))


async def main():
    context = await Context.create_client_context()
    demo, app = (Client(context, base) for base in sys.argv[1:3])
    for check in (methods, blocks, conditions, errors, observation):
        await check(demo)
    await workers(app)
    await context.shutdown()
    print("all checks passed")


asyncio.run(asyncio.wait_for(main(), 120))
