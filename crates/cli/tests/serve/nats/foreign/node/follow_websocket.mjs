// Follows a subject of a stream with `ws`, up to a number. Prints `<sequence> <number>` per message.
//
// After a lost connection it resumes with the epoch of the last start or position and its last sequence.
import { WebSocket } from "ws";

const [url, until] = [process.argv[2], Number(process.argv[3])];

// Milliseconds between two attempts to connect.
const PAUSE = 50;

let epoch = null;
let last = 0;

function open() {
  const from = epoch ? `${epoch}-${last}` : last ? String(last + 1) : "all";
  const socket = new WebSocket(`${url}?from=${from}`);
  socket.on("message", (text) => {
    const message = JSON.parse(text);
    if (message.start ?? message.position) {
      epoch = (message.start ?? message.position).split("-")[0];
    } else if (message.seq) {
      last = message.seq;
      console.log(last, message.data);
      if (message.data === until) {
        process.exit();
      }
    } else {
      console.log(String(text));
    }
  });
  // A failed connection is closed, too.
  socket.on("error", () => {});
  socket.on("close", () => setTimeout(open, PAUSE));
}

open();
