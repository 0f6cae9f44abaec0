"""Follows a subject of a stream with an ordered consumer of nats-py, up to a number. Prints `<sequence> <number>` per message."""

import asyncio
import sys

import nats


async def ignore(error):
    """Failed attempts to connect while there is no server."""


async def main(address, until):
    client = await nats.connect(address, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore)
    done = asyncio.Event()

    async def follow(message):
        print(message.metadata.sequence.stream, message.data.decode(), flush=True)
        if int(message.data) == until:
            done.set()

    await client.jetstream().subscribe("events.n", cb=follow, ordered_consumer=True, idle_heartbeat=1)
    await done.wait()
    await client.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
