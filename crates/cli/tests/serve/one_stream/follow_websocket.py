"""Follows a subject of a stream with `websockets`, up to a number. Prints `<sequence> <number>` per message.

After a lost connection it resumes with the epoch of the last start or position and its last sequence.
"""

import json
import sys
import time

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

# Seconds between two attempts to connect.
PAUSE = 0.05


def main(url, until):
    epoch, last = None, 0
    while True:
        start = f"{epoch}-{last}" if epoch else str(last + 1) if last else "all"
        try:
            with connect(f"{url}?from={start}") as socket:
                for text in socket:
                    message = json.loads(text)
                    if position := message.get("start") or message.get("position"):
                        epoch = position.split("-")[0]
                    elif "seq" in message:
                        last = message["seq"]
                        print(last, message["data"], flush=True)
                        if message["data"] == until:
                            return
                    else:
                        print(text, flush=True)
        except (OSError, EOFError, WebSocketException):
            pass
        time.sleep(PAUSE)


main(sys.argv[1], int(sys.argv[2]))
