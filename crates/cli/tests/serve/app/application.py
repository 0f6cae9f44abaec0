"""A small WSGI application: for tests."""


def answer(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/hello":
        text = "hello %s for %s at %s" % (
            environ["QUERY_STRING"], environ["HTTP_X_FORWARDED_FOR"], environ["HTTP_HOST"])
        body, status = [text.encode()], "200 OK"
    elif path == "/length":
        body, status = [b"%d" % len(environ["wsgi.input"].read())], "200 OK"
    elif path == "/count":
        count = str(int(environ.get("HTTP_STILLING_SESSION_STATE", "0")) + 1)
        start_response("200 OK", [("Stilling-Session-State", count), ("Content-Length", str(len(count)))])
        return [count.encode()]
    elif path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"s" * 7000 for _ in range(100))
    else:
        body, status = [b"it failed"], "500 Internal Server Error"
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body[0])))])
    return body
