"""A worker process that does what the path says, well or badly: for tests.

It speaks HTTP by hand, one thread per connection, so that it can also speak it wrong. A body that it makes is the
pattern `i % 251`; a body that it gets is answered as its length and whether it is that pattern.
"""
import itertools
import os
import socket
import sys
import threading
import time

PATTERN = bytes(i % 251 for i in range(251 * 256))
RELEASED = threading.Event()
HELD = []
COUNT = itertools.count(1)
PATH = sys.argv[1] if len(sys.argv) > 1 else os.environ["STILLING_SOCKET"]


def pattern(start, size):
    at = start % 251
    return (PATTERN * (size // len(PATTERN) + 2))[at:at + size]


class Gone(Exception):
    pass


class Connection:
    def __init__(self, sock):
        self.sock, self.kept = sock, b""

    def more(self):
        data = self.sock.recv(1 << 16)
        if not data:
            raise Gone
        self.kept += data

    def until(self, end):
        while end not in self.kept:
            self.more()
        head, self.kept = self.kept.split(end, 1)
        return head

    def take(self, size):
        while size > 0:
            if not self.kept:
                self.more()
            piece, self.kept = self.kept[:size], self.kept[size:]
            size -= len(piece)
            yield piece

    def body(self, fields):
        if "transfer-encoding" in fields:
            while (size := int(self.until(b"\r\n"), 16)) > 0:
                yield from self.take(size)
                self.until(b"\r\n")
            self.until(b"\r\n")
        else:
            yield from self.take(int(fields.get("content-length", 0)))

    def read_body(self, fields):
        total, good = 0, True
        for piece in self.body(fields):
            good = good and piece == pattern(total, len(piece))
            total += len(piece)
        return b"%d %s" % (total, b"good" if good else b"bad")

    def say(self, *parts):
        for part in parts:
            self.sock.sendall(part)

    def answer(self, body, fields=b"", status=b"200 OK"):
        self.say(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, fields, len(body), body))

    def pieces(self, size):
        for start in range(0, size, 10000):
            yield pattern(start, min(10000, size - start))

    def serve(self):
        while True:
            raw = self.until(b"\r\n\r\n")
            line, *fields = raw.decode("latin-1").split("\r\n")
            fields = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
            method, target, _ = line.split(" ")
            word, *size = target.split("?")[0].strip("/").split("/")
            size = int(size[0]) if size and size[0].isdigit() else 0
            if not self.act(word, size, raw, fields):
                return self.sock.close()

    def act(self, word, size, raw, fields):
        """Does what the first word of the path says. Returns whether the connection goes on."""
        if word == "early":
            self.answer(b"enough", b"Connection: close\r\n", b"413 Content Too Large")
            return False
        got = self.read_body(fields)
        if word == "echo":
            self.answer(raw + b"\r\n\r\n")
        elif word == "turn":
            number = next(COUNT)
            time.sleep(size / 1000)
            self.answer(b"%d" % number)
        elif word == "environment":
            self.answer(" ".join(os.environ).encode())
        elif word == "pid":
            self.answer(b"%d" % os.getpid())
        elif word == "visit":
            number = int(fields.get("stilling-session-state", "0")) + 1
            self.answer(b"%d %d" % (number, os.getpid()), b"Stilling-Session-State: %d\r\n" % number)
        elif word == "state":
            self.answer(fields.get("stilling-session-state", "none").encode())
        elif word == "keep":
            self.answer(b"x", b"stilling-session-state: %s\r\n" % (b"s" * size))
        elif word == "grow":
            HELD.append(b"x" * (size << 20))
            self.answer(b"%d" % os.getpid())
        elif word == "once":
            self.answer(b"%d" % os.getpid())
            return False
        elif word == "sized":
            self.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, *self.pieces(size))
        elif word == "chunked":
            self.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n")
            for piece in self.pieces(size):
                self.say(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.say(b"0\r\nX-End: yes\r\n\r\n")
        elif word == "close":
            self.say(b"HTTP/1.0 200 OK\r\n\r\n", *self.pieces(size))
            return False
        elif word == "fields":
            self.answer(b"x", b"Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: x\r\n"
                        b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-End-To-End: 2\r\n")
        elif word == "interim":
            self.say(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
            self.answer(b"final")
        elif word == "status":
            self.say(b"HTTP/1.1 %d Whatever\r\n%s\r\n" % (size, b"" if size in (204, 304) else b"Content-Length: 0\r\n"))
        elif word == "length":
            self.say(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")
        elif word == "drip":
            self.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            RELEASED.wait()
            self.say(b"6\r\nsecond\r\n0\r\n\r\n")
        elif word == "release":
            RELEASED.set()
            self.answer(b"released")
        elif word == "die":
            os._exit(3)
        elif word == "half":
            self.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", pattern(0, 200000))
            os._exit(4)
        elif word == "hang":
            self.until(b"never")
        elif word == "endless":
            self.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nand then")
            self.until(b"never")
        elif word == "garbage":
            self.say(b"220 mail.example ESMTP\r\n")
        elif word == "upgrade":
            self.say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        elif word == "large-head":
            self.answer(b"x", b"X-Large: %s\r\n" % (b"x" * 20000))
        elif word == "many-fields":
            self.answer(b"x", b"X-Many: x\r\n" * 200)
        elif word == "nothing":
            return False
        elif word == "sleep":
            time.sleep(size / 1000)
            self.answer(b"%d" % os.getpid())
        else:
            self.answer(got)
        return True


def serve(sock):
    try:
        Connection(sock).serve()
    except (Gone, OSError):
        sock.close()


def main():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(PATH)
    listener.listen(100)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


main()
