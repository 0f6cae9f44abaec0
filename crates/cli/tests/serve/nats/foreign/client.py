"""Checks of nats-py against a server; the last line of output confirms that all of them succeeded.

With "restart" it publishes until it has been disconnected and has reconnected, and prints a line for each event; the test kills the
server meanwhile.
"""

import asyncio
import sys

import nats
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

# Seconds after which a wait is a failure.
WAIT_TIMEOUT = 50

# Seconds to wait for an acknowledgement before the message is sent again.
ATTEMPT = 2

# Messages published after the client has reconnected.
AFTERWARDS = 100


async def plain(client):
    got = asyncio.Queue()

    async def keep(message):
        await got.put(message)

    await client.subscribe("a.*", cb=keep)
    await client.publish("a.b", b"hello", headers={"X": "1"})
    await client.publish("a.c.d", b"not for us")
    await client.publish("a.big", b"z" * 900_000)
    await client.flush(WAIT_TIMEOUT)
    first = await asyncio.wait_for(got.get(), WAIT_TIMEOUT)
    assert (first.subject, first.data, first.headers) == ("a.b", b"hello", {"X": "1"}), first
    second = await asyncio.wait_for(got.get(), WAIT_TIMEOUT)
    assert (second.subject, len(second.data)) == ("a.big", 900_000), second.subject
    assert got.empty()


async def requests(client):
    counts = [0, 0]

    def worker(number):
        async def answer(message):
            counts[number] += 1
            await message.respond(b"re:" + message.data)

        return answer

    for number in range(2):
        await client.subscribe("service", queue="workers", cb=worker(number))
    for number in range(10):
        answer = await client.request("service", b"%d" % number, timeout=WAIT_TIMEOUT)
        assert answer.data == b"re:%d" % number, answer
    assert sum(counts) == 10 and min(counts) > 0, counts
    try:
        await client.request("nobody", b"?", timeout=WAIT_TIMEOUT)
        raise AssertionError("somebody answered")
    except NoRespondersError:
        pass


async def streams(client):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    for number in range(1, 101):
        acknowledged = await stream.publish("events.n", b"%d" % number)
        assert (acknowledged.stream, acknowledged.seq) == ("events", number), acknowledged
    once = await stream.publish("events.n", b"101", headers={"Nats-Msg-Id": "q"})
    again = await stream.publish("events.n", b"101", headers={"Nats-Msg-Id": "q"})
    assert (once.seq, once.duplicate, again.seq, again.duplicate) == (101, None, 101, True), again
    try:
        await stream.publish("events.n", b"x", headers={"Nats-Expected-Last-Sequence": "5"})
        raise AssertionError("it was taken")
    except APIError as error:
        assert error.err_code == 10071, error
    assert (await stream.publish("memory.n", b"m")).seq == 1
    several = [stream.publish("events.many", b"%d" % number) for number in range(500)]
    sequences = sorted(answer.seq for answer in await asyncio.gather(*several))
    assert sequences == list(range(102, 602)), sequences[:5]

    information = await stream.stream_info("events")
    assert (information.state.messages, information.state.last_seq) == (601, 601), information.state
    assert await stream.find_stream_name_by_subject("events.x") == "events"
    assert (await stream.account_info()).streams == 2
    message = await stream.get_msg("events", 7)
    assert message.data == b"7", message
    for wrong in (stream.get_msg("events", 9999), stream.stream_info("nothing")):
        try:
            await wrong
            raise AssertionError("it was found")
        except NotFoundError:
            pass


async def replay(client):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    ordered = await stream.subscribe("events.n", ordered_consumer=True)
    for number in range(1, 102):
        message = await ordered.next_msg(timeout=WAIT_TIMEOUT)
        assert (message.data, message.metadata.sequence.stream) == (b"%d" % number, number), message
    await stream.publish("events.n", b"new")
    assert (await ordered.next_msg(timeout=WAIT_TIMEOUT)).data == b"new"

    start = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=600)
    later = await stream.subscribe("events.>", ordered_consumer=True, config=start)
    got = [await later.next_msg(timeout=WAIT_TIMEOUT) for _ in range(3)]
    assert [message.metadata.sequence.stream for message in got] == [600, 601, 602], got
    assert got[2].metadata.timestamp.year >= 2024, got[2].metadata

    memory = await stream.subscribe("memory.>", ordered_consumer=True)
    assert (await memory.next_msg(timeout=WAIT_TIMEOUT)).data == b"m"
    for follower in (ordered, later, memory):
        await follower.unsubscribe()


async def say(address, *lines):
    """Says something that no client says by itself, and waits until the server has taken it."""
    host, port = address.removeprefix("nats://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n' + b"".join(lines) + b"PING\r\n")
    while await asyncio.wait_for(reader.readline(), WAIT_TIMEOUT) != b"PONG\r\n":
        pass
    writer.close()


async def statuses(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    before = (await stream.stream_info("events")).state.consumer_count
    follower = await stream.subscribe("events.status", ordered_consumer=True, idle_heartbeat=1)
    await stream.publish("events.status", b"first")
    assert (await follower.next_msg(timeout=WAIT_TIMEOUT)).data == b"first"
    for words in (b"409 Consumer Deleted", b"100 Idle Heartbeat\r\nNats-Last-Consumer: 99", b"503"):
        headers = b"NATS/1.0 " + words + b"\r\n\r\n"
        line = b"HPUB events.status %d %d\r\n" % (len(headers), len(headers) + 1)
        await say(address, line + headers + b"s\r\n")
        await stream.publish("events.status", b"next")
        got = [(await follower.next_msg(timeout=WAIT_TIMEOUT)).data for _ in range(2)]
        assert got == [b"s", b"next"], got
    after = (await stream.stream_info("events")).state.consumer_count
    assert after <= before + 1, (before, after)


def print_line(*what):
    print(*what, flush=True)


async def restart(address):
    back = asyncio.Event()

    async def disconnected():
        print_line("disconnected")

    async def reconnected():
        print_line("reconnected")
        back.set()

    async def error(what):
        print_line("error", repr(what))

    client = await nats.connect(
        address,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.05,
        disconnected_cb=disconnected,
        reconnected_cb=reconnected,
        error_cb=error,
    )
    has_received = asyncio.Event()

    async def receive(message):
        print_line("received", message.data.decode())
        has_received.set()

    await client.subscribe("plain", cb=receive)
    stream = client.jetstream(timeout=ATTEMPT)
    delivered = set()

    async def follow(message):
        delivered.add(int(message.data))
        print_line("delivered", message.data.decode(), message.metadata.sequence.stream)

    await stream.subscribe("events.n", cb=follow, ordered_consumer=True, idle_heartbeat=1)

    number, left = 0, AFTERWARDS
    while left > 0:
        number += 1
        while True:
            try:
                ack = await stream.publish("events.n", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
                print_line("acknowledged", number, ack.seq)
                break
            except Exception as why:
                print_line("failed", number, repr(why))
        if back.is_set():
            left -= 1
    await client.publish("plain", b"afterwards")
    await asyncio.wait_for(has_received.wait(), WAIT_TIMEOUT)

    async def all_of_them():
        while len(delivered) < number:
            await asyncio.sleep(0.005)

    await asyncio.wait_for(all_of_them(), WAIT_TIMEOUT)
    await client.close()
    print_line("all checks passed")


async def main(address, task):
    if task == "restart":
        return await restart(address)
    client = await nats.connect(address, connect_timeout=WAIT_TIMEOUT)
    assert client.connected_server_version.major == 2
    for step in (plain, requests, streams, replay):
        await step(client)
        print(step.__name__)
    await statuses(client, address)
    await client.drain()
    print("all checks passed")


asyncio.run(main(*sys.argv[1:]))
