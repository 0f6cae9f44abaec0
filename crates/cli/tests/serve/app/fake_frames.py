"""A worker process that speaks frames as the path says, well or badly: for tests."""
import os
import sys
import threading
import time

receive, output = sys.stdin.buffer, sys.stdout.buffer
PATTERN = bytes(i % 251 for i in range(251 * 256))


def write(data):
    output.write(data)
    output.flush()


def frame(number, message, size=None):
    return (size or len(message)).to_bytes(4, "big") + number + message


def ok(body, fields=b""):
    return b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + body


def pattern(size):
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def write_later(data):
    def wait_and_write():
        time.sleep(0.2)
        write(data)

    threading.Thread(target=wait_and_write).start()


def answer(id, head, body):
    def send(body, fields=b""):
        write(frame(id, ok(body, fields)))

    word, _, number = head.split(b" ", 2)[1].decode().lstrip("/").partition("/")
    match word:
        case "echo":
            send(head + b"\r\n\r\n" + body)
        case "put":
            send(b"%d %s" % (len(body), b"good" if body == pattern(len(body)) else b"bad"))
        case "sized":
            send(pattern(int(number)))
        case "sleep":
            time.sleep(int(number) / 1000)
            send(b"%d" % os.getpid())
        case "die":
            os._exit(3)
        case "half":
            write(frame(id, ok(b"half"), 100_000))
            os._exit(3)
        case "hang":
            time.sleep(1000)
        case "print":
            write(b"hello\n")
        case "long":
            write(bytes([0x7f, 0xff, 0xff, 0xff]))
        case "no-http":
            write(frame(id, b"hello"))
        case "empty":
            write(frame(id, b""))
        case "other-number":
            write(frame(bytes(4), ok(b"of another request")))
        case "lying":
            send(b"more than one byte", b"Content-Length: 1\r\n")
        case "twice":
            send(b"one")
            send(b"two")
        case "unasked":
            write_later(frame(id, ok(b"again")))
            send(b"%d" % os.getpid())
        case "name":
            send(os.environ["NAME"].encode())
        case "error":
            print("a line for the log", file=sys.stderr, flush=True)
            send(b"%d" % os.getpid())
        case _:
            send(b"%d" % os.getpid())


write(bytes(8))
while prefix := receive.read(8):
    answer(prefix[4:], *receive.read(int.from_bytes(prefix[:4], "big")).split(b"\r\n\r\n", 1))
