import sys

receive, send = sys.stdin.buffer, sys.stdout.buffer
send.write(bytes(8))  # ready
send.flush()
while prefix := receive.read(8):
    head, body = receive.read(int.from_bytes(prefix[:4], "big")).split(b"\r\n\r\n", 1)
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + head.split(b"\r\n")[0] + b": " + body
    send.write(len(answer).to_bytes(4, "big") + prefix[4:] + answer)
    send.flush()
