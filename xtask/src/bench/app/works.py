"""An app that works for five milliseconds without using the processor, so that its processes are what is scarce."""
import time

BODY = b"hello from behind\n"


def answer(environ, start_response):
    time.sleep(0.005)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]
