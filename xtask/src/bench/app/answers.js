// An app that does almost nothing, so that the server in front of it is what is measured.
const http = require("http");

const body = Buffer.from("hello from behind\n");
const server = http.createServer((request, response) => {
  response.setHeader("Content-Type", "text/plain");
  response.setHeader("Content-Length", body.length);
  response.end(body);
});
// Connections stay between rounds, or each round would begin with new ones.
server.keepAliveTimeout = 0;
server.listen({ path: process.env.STILLING_SOCKET, writableAll: true, backlog: 2048 });
process.on("SIGTERM", () => process.exit(0));
