// Clients of a browser. Each `follow…` appends `<sequence> <number>` per message to `lines`, and what was missing.
window.lines = [];

window.followEvents = (subject) => {
  const events = new EventSource(`/subscribe/${subject}?from=all`);
  events.onmessage = ({ data }) => {
    const { seq, data: number } = JSON.parse(data);
    lines.push(`${seq} ${number}`);
  };
  for (const notice of ["gap", "reset"]) {
    events.addEventListener(notice, ({ data }) => lines.push(`${notice} ${data}`));
  }
};

window.followWebSocket = (subject) => {
  let [epoch, last] = [null, 0];
  const open = () => {
    const from = epoch ? `${epoch}-${last}` : last ? String(last + 1) : "all";
    const socket = new WebSocket(`ws://${location.host}/subscribe/${subject}?from=${from}`);
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.start ?? message.position) {
        epoch = (message.start ?? message.position).split("-")[0];
      } else if (message.seq) {
        last = message.seq;
        lines.push(`${last} ${message.data}`);
      } else {
        lines.push(data);
      }
    };
    socket.onclose = () => setTimeout(open, 50);
  };
  open();
};

const connectNats = (url) =>
  load("@nats-io/nats-core").wsconnect({ servers: url, maxReconnectAttempts: -1, reconnectTimeWait: 50 });

window.followNats = async (subject, url) => {
  const client = await connectNats(url);
  const { consumers } = load("@nats-io/jetstream").jetstream(client);
  const consumer = await consumers.get("events", { filter_subjects: subject });
  const callback = (message) => lines.push(`${message.seq} ${message.string()}`);
  // A consumer that was lost with its server is noticed after two heartbeats.
  await consumer.consume({ callback, expires: 1000, idle_heartbeat: 500 });
};

const expectEqual = (found, expected) => {
  const [left, right] = [found, expected].map((value) => JSON.stringify(value));
  if (left !== right) throw new Error(`${left}, expected ${right}`);
};

// Publishes, subscribes, requests and replies, and publishes three messages to the stream with acknowledgements.
window.checkNats = async (url) => {
  const [client, other] = [await connectNats(url), await connectNats(url)];
  const subscription = other.subscribe("page.*");
  const received = (async () => {
    const all = [];
    for await (const message of subscription) {
      all.push([message.subject, message.data.length, message.headers?.get("A") ?? null]);
      if (all.length === 3) return all;
    }
  })();
  await other.flush();
  const headers = load("@nats-io/nats-core").headers();
  headers.set("A", "1");
  client.publish("page.a", "hello");
  client.publish("page.b", "with headers", { headers });
  client.publish("page.c", new Uint8Array(client.info.max_payload));
  expectEqual(await received, [["page.a", 5, null], ["page.b", 12, "1"], ["page.c", client.info.max_payload, null]]);
  other.subscribe("service", { callback: (_, message) => message.respond(`re:${message.string()}`) });
  await other.flush();
  expectEqual((await client.request("service", "1", { timeout: 10_000 })).string(), "re:1");
  const streams = load("@nats-io/jetstream").jetstream(client);
  for (let number = 1; number <= 3; number++) {
    const ack = await streams.publish("events.page", String(number), { msgID: `page-${number}` });
    expectEqual([ack.stream, ack.seq], ["events", number]);
  }
  expectEqual((await streams.publish("events.page", "3", { msgID: "page-3" })).duplicate, true);
  await client.drain();
  await other.close();
};
undefined;
