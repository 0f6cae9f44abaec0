// A small server: for tests.
const http = require("http");

const server = http.createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (url.pathname === "/hello") {
    const query = url.search.slice(1);
    response.end(`hello ${query} for ${request.headers["x-forwarded-for"]} at ${request.headers.host}`);
  } else if (url.pathname === "/length") {
    let length = 0;
    request.on("data", (piece) => (length += piece.length));
    request.on("end", () => response.end(String(length)));
  } else if (url.pathname === "/count") {
    const count = String(Number(request.headers["stilling-session-state"] || 0) + 1);
    response.setHeader("Stilling-Session-State", count);
    response.end(count);
  } else if (url.pathname === "/stream") {
    for (let at = 0; at < 100; at += 1) response.write("s".repeat(7000));
    response.end();
  } else {
    response.statusCode = 500;
    response.end("it failed");
  }
});
server.listen(process.env.STILLING_SOCKET);
process.on("SIGTERM", () => process.exit(0));
