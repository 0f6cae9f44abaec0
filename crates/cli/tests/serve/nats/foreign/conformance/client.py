"""Every call of nats-py that a server without durable consumers can answer: one line `ok NAME` or `FAIL NAME reason` for each case.

Runs against any server that has the streams `events` (events.>) and `memory` (memory.>), and the users `root` (password `all`) and
`sensor` (password `s`, publishes to sensors.>, subscribes to _INBOX.>).

With "idle SECONDS" it runs no case, but measures an ordered consumer after that long a silence.
"""

import asyncio
import sys
import time

import nats
from nats.errors import (
    AuthorizationError,
    ConnectionClosedError,
    MaxPayloadError,
    NoRespondersError,
    TimeoutError,
)
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import APIError, NotFoundError, NoStreamResponseError

# Seconds after which a wait is a failure.
WAIT_TIMEOUT = 10

CASES = []


def case(function):
    CASES.append(function)
    return function


class Errors(list):
    """What a client's error callback was called with."""

    async def note(self, error):
        self.append(str(error))


async def connect(address, **options):
    options = {"user": "root", "password": "all", "connect_timeout": WAIT_TIMEOUT, **options}
    return await nats.connect(address, **options)


async def flush(client):
    """Waits until the server has read all that the client was asked to send.

    `Client.flush` of nats-py writes its PING at once, ahead of commands that still wait for the task which writes them. That
    task has written them by the time of the first PONG.
    """
    await client.flush()
    await client.flush()


def equal(got, expected):
    assert got == expected, f"{got!r}, expected {expected!r}"


async def eventually(condition):
    end = time.monotonic() + WAIT_TIMEOUT
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.01)


async def raises(kind, awaitable):
    try:
        got = await awaitable
    except kind as error:
        return error
    raise AssertionError(f"{got!r} instead of {kind}")


def new_subject(prefix="core"):
    new_subject.count += 1
    return f"{prefix}.py{new_subject.count}"


new_subject.count = 0


# Features of the core protocol.


@case
async def connect_describes_the_server(client, address):
    info = client._server_info
    equal((client.connected_server_version.major, info["proto"], info["headers"]), (2, 1, True))
    equal((client.max_payload, info["port"]), (1048576, int(address.rsplit(":", 1)[1])))
    assert isinstance(client.client_id, int), client.client_id
    equal(str(client.client_ip), "127.0.0.1")
    assert info["server_id"] and info["go"] and info["host"], info


@case
async def connect_options(client, address):
    for options in ({"verbose": True}, {"pedantic": True}, {"no_echo": True}, {"name": "a name"}):
        other = await connect(address, **options)
        subject = new_subject()
        subscription = await client.subscribe(subject)
        await flush(client)
        await other.publish(subject, b"x")
        await flush(other)
        equal((await subscription.next_msg(WAIT_TIMEOUT)).data, b"x")
        await other.close()


@case
async def wrong_password(client, address):
    error = await raises(Exception, connect(address, password="wrong", allow_reconnect=False))
    assert "authorization" in str(error).lower(), error


@case
async def wildcards(client, address):
    base = new_subject()
    one, rest = await client.subscribe(f"{base}.*.c"), await client.subscribe(f"{base}.>")
    for subject in ("a.c", "b.c", "a.d", "a.c.e"):
        await client.publish(f"{base}.{subject}", subject.encode())
    await flush(client)
    equal([(await one.next_msg(WAIT_TIMEOUT)).data for _ in range(2)], [b"a.c", b"b.c"])
    equal([(await rest.next_msg(WAIT_TIMEOUT)).data for _ in range(4)], [b"a.c", b"b.c", b"a.d", b"a.c.e"])
    equal(one.pending_msgs, 0)


@case
async def headers_and_reply(client, address):
    subject = new_subject()
    subscription = await client.subscribe(subject)
    await client.publish(subject, b"x", reply="back.to", headers={"A": "1", "b-C": "two words"})
    message = await subscription.next_msg(WAIT_TIMEOUT)
    equal((message.headers, message.reply, message.data), ({"A": "1", "b-C": "two words"}, "back.to", b"x"))
    await client.publish(subject, b"", headers={"A": "1"})
    equal((await subscription.next_msg(WAIT_TIMEOUT)).data, b"")


@case
async def queue_groups(client, address):
    subject, counts = new_subject(), [0, 0, 0]

    def count(number):
        async def one_more(message):
            counts[number] += 1

        return one_more

    for number in range(2):
        await client.subscribe(subject, queue="q", cb=count(number))
    await client.subscribe(subject, cb=count(2))
    for _ in range(100):
        await client.publish(subject, b"x")
    await flush(client)
    await eventually(lambda: sum(counts) == 200)
    assert counts[0] > 0 and counts[1] > 0 and counts[2] == 100, counts


@case
async def request_reply(client, address):
    subject = new_subject()

    async def answer(message):
        await message.respond(b"re:" + message.data)

    await client.subscribe(subject, cb=answer)
    equal((await client.request(subject, b"1", timeout=WAIT_TIMEOUT)).data, b"re:1")
    equal((await client.request(subject, b"2", timeout=WAIT_TIMEOUT, old_style=True)).data, b"re:2")
    equal((await client.request(subject, b"3", timeout=WAIT_TIMEOUT, headers={"A": "1"})).data, b"re:3")
    answers = await asyncio.gather(*(client.request(subject, b"%d" % n, timeout=WAIT_TIMEOUT) for n in range(50)))
    equal([answer.data for answer in answers], [b"re:%d" % n for n in range(50)])


@case
async def request_without_an_answer(client, address):
    subject = new_subject()
    await client.subscribe(subject)
    await raises(TimeoutError, client.request(subject, b"x", timeout=0.1))


@case
async def no_responders(client, address):
    await raises(NoRespondersError, client.request(new_subject(), b"x", timeout=WAIT_TIMEOUT))


@case
async def unsubscribe(client, address):
    subject = new_subject()
    ended, goes_on = await client.subscribe(subject), await client.subscribe(subject)
    await ended.unsubscribe()
    await client.publish(subject, b"x")
    equal((await goes_on.next_msg(WAIT_TIMEOUT)).data, b"x")
    await raises(Exception, ended.next_msg(0.1))


@case
async def unsubscribe_after_a_number_of_messages(client, address):
    subject, got = new_subject(), []

    async def keep(message):
        got.append(message.data)

    subscription = await client.subscribe(subject, cb=keep, max_msgs=0)
    await subscription.unsubscribe(limit=3)
    goes_on = await client.subscribe(subject)
    for number in range(6):
        await client.publish(subject, b"%d" % number)
    for _ in range(6):
        await goes_on.next_msg(WAIT_TIMEOUT)
    equal(got, [b"0", b"1", b"2"])


@case
async def drain_of_a_subscription(client, address):
    subject, got = new_subject(), []

    async def keep(message):
        got.append(message.data)

    subscription = await client.subscribe(subject, cb=keep)
    for number in range(50):
        await client.publish(subject, b"%d" % number)
    await flush(client)
    await subscription.drain()
    await client.publish(subject, b"late")
    await flush(client)
    equal(len(got), 50)


@case
async def drain_of_a_connection(client, address):
    other, subject = await connect(address), new_subject()
    subscription = await client.subscribe(subject)
    await flush(client)
    for number in range(50):
        await other.publish(subject, b"%d" % number)
    await other.drain()
    equal([(await subscription.next_msg(WAIT_TIMEOUT)).data for _ in range(50)], [b"%d" % n for n in range(50)])
    assert other.is_closed
    await raises(ConnectionClosedError, other.publish(subject, b"x"))


@case
async def flush_and_rtt(client, address):
    await client.flush(WAIT_TIMEOUT)
    assert await client.rtt(WAIT_TIMEOUT) > 0


@case
async def a_message_of_max_payload(client, address):
    subject = new_subject()
    subscription = await client.subscribe(subject)
    await client.publish(subject, b"z" * client.max_payload)
    equal(len((await subscription.next_msg(WAIT_TIMEOUT)).data), client.max_payload)


@case
async def a_message_over_max_payload(client, address):
    await raises(MaxPayloadError, client.publish(new_subject(), b"z" * (client.max_payload + 1)))


@case
async def no_echo(client, address):
    other, subject = await connect(address, no_echo=True), new_subject()
    own, foreign = await other.subscribe(subject), await client.subscribe(subject)
    await flush(other)
    await flush(client)
    await other.publish(subject, b"own")
    equal((await foreign.next_msg(WAIT_TIMEOUT)).data, b"own")
    await client.publish(subject, b"foreign")
    equal((await own.next_msg(WAIT_TIMEOUT)).data, b"foreign")
    await other.close()


@case
async def invalid_publish_subjects_leave_the_connection_open(client, address):
    errors, subject = Errors(), new_subject()
    other = await connect(address, error_cb=errors.note, allow_reconnect=False)
    subscription = await other.subscribe(subject)
    for invalid in ("a..b", ".a", "a.", "a.*", "a.>", "*", ">", "a" * 1200, "a." * 64 + "b"):
        await other.publish(invalid, b"x")
    await other.publish(subject, b"still")
    equal((await subscription.next_msg(WAIT_TIMEOUT)).data, b"still")
    equal((errors, other.is_connected), ([], True))
    await other.close()


@case
async def permissions(client, address):
    errors, subject = Errors(), "sensors." + new_subject()
    other = await connect(address, user="sensor", password="s", error_cb=errors.note)
    inbox = other.new_inbox()
    subscription, watched = await other.subscribe(inbox), await client.subscribe(subject)
    await flush(client)
    await other.publish("orders.a", b"x")
    await other.subscribe("orders.b")
    await flush(other)
    await eventually(lambda: len(errors) >= 2)
    messages = " ".join(errors).lower()
    assert "permissions violation for publish" in messages and "permissions violation for subscription" in messages, errors
    await other.publish(subject, b"allowed")
    equal((await watched.next_msg(WAIT_TIMEOUT)).data, b"allowed")
    await client.publish(inbox, b"y")
    equal((await subscription.next_msg(WAIT_TIMEOUT)).data, b"y")
    await other.close()


@case
async def reconnect(client, address):
    back, subject = asyncio.Event(), new_subject()

    async def reconnected():
        back.set()

    other = await connect(address, reconnected_cb=reconnected, reconnect_time_wait=0.05)
    subscription = await other.subscribe(subject)
    await flush(other)
    await other.force_reconnect()
    await asyncio.wait_for(back.wait(), WAIT_TIMEOUT)
    await flush(other)
    await client.publish(subject, b"afterwards")
    equal((await subscription.next_msg(WAIT_TIMEOUT)).data, b"afterwards")
    await other.close()


# Features of streams.


@case
async def publish(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    first = await stream.publish("events.py.a", b"1")
    second = await stream.publish("events.py.a", b"2", stream="events")
    equal((first.stream, second.seq - first.seq, first.duplicate), ("events", 1, None))
    equal((await stream.publish("memory.py", b"m")).stream, "memory")
    error = await raises(APIError, stream.publish("events.py.a", b"x", stream="memory"))
    equal(error.err_code, 10060)


@case
async def publish_async(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    answers = [await stream.publish_async("events.py.b", b"%d" % number) for number in range(200)]
    await stream.publish_async_completed()
    sequences = [(await answer).seq for answer in answers]
    equal(sequences, list(range(sequences[0], sequences[0] + 200)))


@case
async def publish_once_under_an_id(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    once = await stream.publish("events.py.c", b"1", headers={"Nats-Msg-Id": "py-id"})
    again = await stream.publish("events.py.c", b"1", headers={"Nats-Msg-Id": "py-id"})
    equal((again.seq, again.duplicate), (once.seq, True))


@case
async def publish_with_expectations(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    last = (await stream.publish("events.py.d", b"1", headers={"Nats-Msg-Id": "py-last"})).seq
    right = {"Nats-Expected-Last-Sequence": str(last), "Nats-Expected-Stream": "events"}
    equal((await stream.publish("events.py.d", b"2", headers=right)).seq, last + 1)
    error = await raises(APIError, stream.publish("events.py.d", b"3", headers=right))
    equal((error.code, error.err_code), (400, 10071))


@case
async def publish_without_a_stream(client, address):
    await raises(NoStreamResponseError, client.jetstream(timeout=WAIT_TIMEOUT).publish("nowhere.py", b"x"))


@case
async def account_info(client, address):
    info = await client.jetstream(timeout=WAIT_TIMEOUT).account_info()
    equal((info.streams, info.limits.max_streams), (2, -1))


@case
async def stream_info(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    before = (await stream.stream_info("events")).state
    await stream.publish("events.py.e", b"x" * 1000)
    info = await stream.stream_info("events")
    equal((info.config.name, info.config.subjects), ("events", ["events.>"]))
    equal((info.state.messages, info.state.last_seq), (before.messages + 1, before.last_seq + 1))
    assert info.state.bytes > before.bytes, (before, info.state)
    assert str(info.created) > "2024", info
    await raises(NotFoundError, stream.stream_info("missing"))


@case
async def stream_lists(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    equal(sorted(info.config.name for info in await stream.streams_info()), ["events", "memory"])
    equal(len(await stream.streams_info(offset=1)), 1)
    equal(len(await stream.streams_info(offset=5)), 0)
    equal(len(list(await stream.streams_info_iterator())), 2)
    equal(await stream.find_stream_name_by_subject("events.x"), "events")
    await raises(NotFoundError, stream.find_stream_name_by_subject("nowhere.x"))


@case
async def get_message(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    sequence = (await stream.publish("events.py.f", b"got", headers={"A": "1"})).seq
    for direct in (False, True):
        message = await stream.get_msg("events", sequence, direct=direct)
        equal((message.subject, message.seq, message.data), ("events.py.f", sequence, b"got"))
        equal(message.headers["A"], "1")
        message = await stream.get_msg("events", 1, subject="events.py.f", next=True, direct=direct)
        equal((message.seq, message.data), (sequence, b"got"))
        await raises(NotFoundError, stream.get_msg("events", 999_999, direct=direct))


async def ordered(stream, subject, **options):
    return await stream.subscribe(subject, ordered_consumer=True, **options)


@case
async def ordered_push(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    for name in ("events", "memory"):
        subject = f"{name}.py.push"
        for number in range(50):
            await stream.publish(subject, b"%d" % number)
        follower = await ordered(stream, subject)
        for number in range(50):
            equal((await follower.next_msg(WAIT_TIMEOUT)).data, b"%d" % number)
        await stream.publish(subject, b"new")
        message = await follower.next_msg(WAIT_TIMEOUT)
        equal((message.data, message.metadata.num_pending, message.metadata.stream), (b"new", 0, name))
        equal((await follower.consumer_info()).num_pending, 0)
        await follower.unsubscribe()


@case
async def ordered_push_from_somewhere(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    sequences = [(await stream.publish("events.py.start", b"%d" % number)).seq for number in range(5)]
    for options, expected in (
        ({"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": sequences[2]}, b"2"),
        ({"deliver_policy": DeliverPolicy.ALL}, b"0"),
        ({"deliver_policy": DeliverPolicy.NEW}, b"new"),
    ):
        follower = await ordered(stream, "events.py.start", config=ConsumerConfig(**options))
        if options["deliver_policy"] == DeliverPolicy.NEW:
            await stream.publish("events.py.start", b"new")
        equal((await follower.next_msg(WAIT_TIMEOUT)).data, expected)
        await follower.unsubscribe()


@case
async def ordered_push_headers_only(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    await stream.publish("events.py.head", b"12345", headers={"A": "1"})
    follower = await ordered(stream, "events.py.head", headers_only=True)
    message = await follower.next_msg(WAIT_TIMEOUT)
    equal((message.data, message.headers["A"], message.headers["Nats-Msg-Size"]), (b"", "1", "5"))
    await follower.unsubscribe()


@case
async def ordered_push_stays_idle(client, address):
    """Heartbeats come: a consumer without messages is not made again."""
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    follower = await ordered(stream, "events.py.idle", idle_heartbeat=0.3)
    name = (await follower.consumer_info()).name
    await asyncio.sleep(1.5)
    await stream.publish("events.py.idle", b"x")
    message = await follower.next_msg(WAIT_TIMEOUT)
    equal((message.data, message.metadata.consumer), (b"x", name))
    await follower.unsubscribe()


async def puller(stream, subject, **options):
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30, **options)
    return await stream.pull_subscribe(subject, stream="events", config=config)


@case
async def pull_fetch(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    for number in range(10):
        await stream.publish("events.py.pull", b"%d" % number)
    follower = await puller(stream, "events.py.pull")
    equal([message.data for message in await follower.fetch(5, timeout=WAIT_TIMEOUT)], [b"%d" % n for n in range(5)])
    equal((await follower.fetch(1, timeout=WAIT_TIMEOUT))[0].data, b"5")
    # Fewer messages than requested are available.
    equal([message.data for message in await follower.fetch(20, timeout=0.5)], [b"%d" % n for n in range(6, 10)])
    await raises(TimeoutError, follower.fetch(5, timeout=0.3))
    await raises(TimeoutError, follower.fetch(1, timeout=0.3))
    await raises(Exception, follower.fetch(5, timeout=0.5, heartbeat=0.1))
    await stream.publish("events.py.pull", b"new")
    equal((await follower.fetch(3, timeout=1))[0].data, b"new")
    equal((await follower.consumer_info()).num_pending, 0)


@case
async def pull_ends_with_what_was_asked_and_not_delivered(client, address):
    """The headers of 404 and 408: how many messages and bytes of the request are open."""
    stream, inbox = client.jetstream(timeout=WAIT_TIMEOUT), client.new_inbox()
    follower = await puller(stream, "events.py.open")
    name = (await follower.consumer_info()).name
    await stream.publish("events.py.open", b"x")
    answers = await client.subscribe(inbox)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.events.{name}"
    for request, status in (
        (b'{"batch":5,"no_wait":true}', None),
        (b'{"batch":7,"no_wait":true}', ("404", "No Messages", "7", "0")),
        (b'{"batch":9,"max_bytes":1000,"expires":100000000}', ("408", "Request Timeout", "9", "1000")),
    ):
        await client.publish(subject, request, reply=inbox)
        message = await answers.next_msg(WAIT_TIMEOUT)
        if status is None:
            equal(message.data, b"x")
            message, status = await answers.next_msg(WAIT_TIMEOUT), ("404", "No Messages", "4", "0")
        heads = message.headers
        got = tuple(heads.get(name) for name in ("Status", "Description", "Nats-Pending-Messages", "Nats-Pending-Bytes"))
        equal(got, status)


@case
async def consumers(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    config = ConsumerConfig(name="py-own", ack_policy=AckPolicy.NONE, filter_subject="events.py.own")
    made = await stream.add_consumer("events", config)
    again = await stream.add_consumer("events", config)
    equal((made.name, again.name, made.config.filter_subject), ("py-own", "py-own", "events.py.own"))
    assert "py-own" in [info.name for info in await stream.consumers_info("events")]
    follower = await stream.pull_subscribe_bind(stream="events", name="py-own")
    await raises(TimeoutError, follower.fetch(1, timeout=0.2))
    equal((await stream.consumer_info("events", "py-own")).num_pending, 0)
    equal(await stream.delete_consumer("events", "py-own"), True)
    await raises(NotFoundError, stream.consumer_info("events", "py-own"))
    await raises(NotFoundError, stream.delete_consumer("events", "py-own"))


@case
async def api_errors(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    for refused in (
        stream.delete_stream("missing"),
        stream.consumers_info("missing"),
        stream.add_consumer("missing", ConsumerConfig(ack_policy=AckPolicy.NONE)),
    ):
        await raises(NotFoundError, refused)


# Unsupported features and missing objects.


async def refused(awaitable, *words):
    error = await raises(APIError, awaitable)
    description = error.description or ""
    assert error.code in (400, 403, 404, 500, 501, 503), error
    for word in words:
        assert word in description, (word, description)


@case
async def refusals(client, address):
    stream = client.jetstream(timeout=WAIT_TIMEOUT)
    await refused(stream.add_consumer("events", ConsumerConfig(durable_name="d", ack_policy=AckPolicy.NONE)), "durable")
    await refused(stream.add_consumer("events", ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)), "ack_policy")
    await refused(stream.add_consumer("events", ConsumerConfig(ack_policy=AckPolicy.NONE, pause_until="2099-01-01T00:00:00Z")), "pause_until")
    last = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.LAST, filter_subject="events.py.a")
    await refused(stream.add_consumer("events", last), "deliver_policy last")
    await refused(stream.add_stream(StreamConfig(name="other", subjects=["other.>"])), "configuration")
    await refused(stream.add_stream(StreamConfig(name="events", subjects=["events.>"], max_msgs=5)), "max_msgs")
    await refused(stream.delete_stream("events"), "configuration")
    await refused(stream.purge_stream("events"), "configuration")
    await refused(stream.delete_msg("events", 1))
    await refused(stream.get_last_msg("events", "events.py.a"), "last")
    await refused(stream.create_key_value(bucket="kv"))
    await refused(stream.create_object_store("objects"))


async def idle(address, seconds):
    """Prints `push MICROSECONDS kept|reset`: the delay of the first message after a silence, and whether the consumer is the same."""
    client = await connect(address)
    subject = new_subject("events")
    follower = await ordered(client.jetstream(timeout=WAIT_TIMEOUT), subject)

    async def deliver():
        await client.publish(subject, b"%d" % time.monotonic_ns())
        message = await follower.next_msg(2 * WAIT_TIMEOUT)
        return message.metadata.consumer, (time.monotonic_ns() - int(message.data)) // 1000

    before, _ = await deliver()
    print("waiting", flush=True)
    await asyncio.sleep(seconds)
    after, microseconds = await deliver()
    print("push", microseconds, "kept" if after == before else "reset", flush=True)
    await client.close()


async def main(address, chosen):
    if chosen[:1] == ["idle"]:
        return await idle(address, float(chosen[1]))
    failed = False
    for function in CASES:
        name = function.__name__
        if chosen and name not in chosen:
            continue
        try:
            client = await connect(address)
            await asyncio.wait_for(function(client, address), 2 * WAIT_TIMEOUT)
            await client.close()
            print("ok", name, flush=True)
        except Exception as error:
            failed = True
            print("FAIL", name, f"{type(error).__name__}: {error}".replace("\n", " ")[:300], flush=True)
    print("done", flush=True)
    return failed


sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
