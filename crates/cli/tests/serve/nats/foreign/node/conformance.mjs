// Every call of the NATS clients for Node that a server without durable consumers can answer: one line `ok NAME` or
// `FAIL NAME reason` for each case.
//
// The address is nats://HOST:PORT, or ws://HOST:PORT for the same over WebSocket.
//
// Runs against any server that has the streams `events` (events.>) and `memory` (memory.>), and the users `root` (password `all`)
// and `sensor` (password `s`, publishes to sensors.>, subscribes to _INBOX.>).
//
// With "idle SECONDS" it runs no case, but measures ordered consumers after that long a silence.
import assert from "node:assert/strict";
import { connect, createInbox, headers } from "@nats-io/transport-node";
import { wsconnect } from "@nats-io/nats-core";
import { AckPolicy, DeliverPolicy, ReplayPolicy, StorageType, jetstream, jetstreamManager } from "@nats-io/jetstream";

// Milliseconds after which a case is a failure.
const PATIENCE = 20_000;

const address = process.argv[2].replace("nats://", "");
const { port } = new URL(process.argv[2]);
const isWebSocket = address.startsWith("ws://");
// Node has one of its own from version 22 on.
globalThis.WebSocket ??= (await import("ws")).WebSocket;
const open = isWebSocket ? wsconnect : connect;
const sleep = (time) => new Promise((resolve) => setTimeout(resolve, time));
const root = (options = {}) => open({ servers: address, user: "root", pass: "all", ...options });

let subjects = 0;
const newSubject = () => `core.node${++subjects}`;

// Received messages of each subscription or consumer: the client continues only while it is iterated over.
const arrived = new WeakMap();

async function pump(subscription, messages) {
  for await (const message of subscription) {
    messages.push(message);
  }
}

async function next(subscription) {
  if (!arrived.has(subscription)) {
    const messages = [];
    arrived.set(subscription, messages);
    pump(subscription, messages).catch((error) => messages.push(error));
  }
  const messages = arrived.get(subscription);
  await eventually(() => messages.length > 0);
  const message = messages.shift();
  if (message instanceof Error) {
    throw message;
  }
  return message;
}

async function take(subscription, count) {
  const all = [];
  while (all.length < count) {
    all.push(await next(subscription));
  }
  return all;
}

async function eventually(condition) {
  while (!condition()) {
    await sleep(5);
  }
}

async function collect(iterable) {
  const all = [];
  for await (const one of iterable) {
    all.push(one);
  }
  return all;
}

const core = {
  async connect_describes_the_server(client) {
    const { info } = client;
    assert.deepEqual([info.max_payload, info.headers, info.proto], [1048576, true, 1]);
    assert.deepEqual([info.port, info.client_ip], [Number(port), "127.0.0.1"]);
    assert.ok(info.server_id && info.server_name && info.host && info.go && info.version.startsWith("2."), info);
    assert.equal(typeof info.client_id, "number");
  },
  async connect_options(client) {
    for (const options of [{ verbose: true }, { pedantic: true }, { noEcho: true }, { name: "a name" }]) {
      const other = await root(options);
      const subject = newSubject();
      const subscription = client.subscribe(subject);
      await client.flush();
      other.publish(subject, "x");
      await other.flush();
      assert.equal((await next(subscription)).string(), "x");
      await other.close();
    }
  },
  async wrong_password() {
    await assert.rejects(root({ pass: "wrong", reconnect: false }), /authorization/i);
  },
  async wildcards(client) {
    const base = newSubject();
    const [one, rest] = [client.subscribe(`${base}.*.c`), client.subscribe(`${base}.>`)];
    for (const subject of ["a.c", "b.c", "a.d", "a.c.e"]) {
      client.publish(`${base}.${subject}`, subject);
    }
    assert.deepEqual((await take(one, 2)).map((message) => message.string()), ["a.c", "b.c"]);
    assert.deepEqual((await take(rest, 4)).map((message) => message.string()), ["a.c", "b.c", "a.d", "a.c.e"]);
  },
  async headers_and_reply(client) {
    const subject = newSubject();
    const subscription = client.subscribe(subject);
    const lines = headers();
    lines.append("A", "1");
    lines.append("A", "2");
    lines.set("b-C", "two words");
    client.publish(subject, "x", { headers: lines, reply: "back.to" });
    client.publish(subject, new Uint8Array([0, 255, 13, 10]));
    client.publish(subject);
    const [first, second, third] = await take(subscription, 3);
    assert.deepEqual([first.headers.values("A"), first.headers.get("b-C"), first.reply], [["1", "2"], "two words", "back.to"]);
    assert.deepEqual([...second.data], [0, 255, 13, 10]);
    assert.equal(third.data.length, 0);
  },
  async queue_groups(client) {
    const subject = newSubject();
    const counts = [0, 0, 0];
    for (const number of counts.keys()) {
      client.subscribe(subject, { queue: number < 2 ? "q" : undefined, callback: () => counts[number]++ });
    }
    for (let number = 0; number < 100; number++) {
      client.publish(subject);
    }
    await eventually(() => counts[0] + counts[1] + counts[2] === 200);
    assert.ok(counts[0] > 0 && counts[1] > 0 && counts[2] === 100, String(counts));
  },
  async request_reply(client) {
    const subject = newSubject();
    client.subscribe(subject, { callback: (_, message) => message.respond(`re:${message.string()}`) });
    for (const options of [{}, { noMux: true, timeout: 5000 }]) {
      assert.equal((await client.request(subject, "1", { timeout: 5000, ...options })).string(), "re:1");
    }
    const all = [...Array(50).keys()].map((number) => client.request(subject, `${number}`, { timeout: 5000 }));
    assert.deepEqual((await Promise.all(all)).map((answer) => answer.string()), [...Array(50).keys()].map((n) => `re:${n}`));
    assert.equal((await collect(await client.requestMany(subject, "m", { strategy: "count", maxMessages: 1, maxWait: 5000 }))).length, 1);
  },
  async request_without_an_answer(client) {
    const subject = newSubject();
    client.subscribe(subject);
    await assert.rejects(client.request(subject, "x", { timeout: 100 }), /timeout/i);
  },
  async no_responders(client) {
    await assert.rejects(client.request(newSubject(), "x", { timeout: 5000 }), /no responders/i);
  },
  async unsubscribe(client) {
    const subject = newSubject();
    const [ended, goesOn] = [client.subscribe(subject), client.subscribe(subject)];
    ended.unsubscribe();
    client.publish(subject, "x");
    assert.equal((await next(goesOn)).string(), "x");
    assert.equal(ended.getReceived(), 0);
  },
  async unsubscribe_after_a_number_of_messages(client) {
    const subject = newSubject();
    const [limited, goesOn] = [client.subscribe(subject, { max: 3 }), client.subscribe(subject)];
    for (let number = 0; number < 6; number++) {
      client.publish(subject, `${number}`);
    }
    await take(goesOn, 6);
    assert.deepEqual((await collect(limited)).map((message) => message.string()), ["0", "1", "2"]);
  },
  async drain_of_a_subscription(client) {
    const subject = newSubject();
    let count = 0;
    const subscription = client.subscribe(subject, { callback: () => count++ });
    for (let number = 0; number < 50; number++) {
      client.publish(subject);
    }
    await subscription.drain();
    assert.equal(count, 50);
  },
  async drain_of_a_connection(client) {
    const other = await root();
    const subject = newSubject();
    const subscription = client.subscribe(subject);
    await client.flush();
    for (let number = 0; number < 50; number++) {
      other.publish(subject, `${number}`);
    }
    await other.drain();
    assert.deepEqual((await take(subscription, 50)).map((message) => message.string()), [...Array(50).keys()].map(String));
    assert.ok(other.isClosed());
    assert.throws(() => other.publish(subject), /closed/i);
  },
  async flush_and_rtt(client) {
    await client.flush();
    assert.ok(await client.rtt() >= 0);
    assert.ok(client.stats().outBytes >= 0 && client.getServer().includes(port));
  },
  async a_message_of_max_payload(client) {
    const subject = newSubject();
    const subscription = client.subscribe(subject);
    client.publish(subject, new Uint8Array(client.info.max_payload));
    assert.equal((await next(subscription)).data.length, client.info.max_payload);
  },
  async a_message_over_max_payload(client) {
    const closed = client.closed();
    try {
      client.publish(newSubject(), new Uint8Array(client.info.max_payload + 1));
    } catch (error) {
      assert.match(String(error), /payload/i);
      return;
    }
    assert.match(String(await closed), /payload/i);
  },
  async no_echo(client) {
    const other = await root({ noEcho: true });
    const subject = newSubject();
    const [own, foreign] = [other.subscribe(subject), client.subscribe(subject)];
    await other.flush();
    await client.flush();
    other.publish(subject, "own");
    assert.equal((await next(foreign)).string(), "own");
    client.publish(subject, "foreign");
    assert.equal((await next(own)).string(), "foreign");
    await other.close();
  },
  async invalid_publish_subjects_leave_the_connection_open() {
    const other = await root({ reconnect: false });
    const subject = newSubject();
    const subscription = other.subscribe(subject);
    for (const invalid of ["a..b", ".a", "a.", "a.*", "a.>", "*", ">", "a".repeat(1200), `${"a.".repeat(64)}b`]) {
      try {
        other.publish(invalid, "x");
      } catch (error) {
        // The client itself may reject some.
        assert.match(String(error), /subject/i);
      }
    }
    other.publish(subject, "still");
    assert.equal((await next(subscription)).string(), "still");
    assert.ok(!other.isClosed());
    await other.close();
  },
  async permissions(client) {
    const other = await root({ user: "sensor", pass: "s" });
    const events = [];
    (async () => {
      for await (const status of other.status()) {
        events.push(`${status.type} ${status.error ?? ""}`.toLowerCase());
      }
    })();
    const [inbox, subject] = [createInbox(), `sensors.${newSubject()}`];
    const [subscription, watched] = [other.subscribe(inbox), client.subscribe(subject)];
    await client.flush();
    other.publish("orders.a");
    const refused = collect(other.subscribe("orders.b"));
    await assert.rejects(refused, /permissions violation/i);
    await eventually(() => events.some((line) => line.includes("permissions violation for publish")));
    other.publish(subject, "allowed");
    assert.equal((await next(watched)).string(), "allowed");
    client.publish(inbox, "y");
    assert.equal((await next(subscription)).string(), "y");
    await other.close();
  },
  async reconnect(client) {
    const other = await root({ reconnectTimeWait: 50 });
    const subject = newSubject();
    const subscription = other.subscribe(subject);
    await other.flush();
    const back = (async () => {
      for await (const status of other.status()) {
        if (status.type === "reconnect") {
          return;
        }
      }
    })();
    await other.reconnect();
    await back;
    await other.flush();
    client.publish(subject, "afterwards");
    assert.equal((await next(subscription)).string(), "afterwards");
    await other.close();
  },
};

// The name of the consumer that delivered a message.
const consumerOf = (message) => message.info.consumer;

async function fill(streams, subject, count, payload = String) {
  const sequences = [];
  for (let number = 0; number < count; number++) {
    sequences.push((await streams.publish(subject, payload(number))).seq);
  }
  return sequences;
}

const ofStreams = {
  async publish(client, streams) {
    const first = await streams.publish("events.node.a", "1");
    const second = await streams.publish("events.node.a", "2", { expect: { streamName: "events" } });
    assert.deepEqual([first.stream, second.seq - first.seq, second.duplicate], ["events", 1, false]);
    assert.equal((await streams.publish("memory.node", "m")).stream, "memory");
    await assert.rejects(streams.publish("events.node.a", "x", { expect: { streamName: "memory" } }), /stream does not match/);
  },
  async publish_once_under_an_id(client, streams) {
    const once = await streams.publish("events.node.c", "1", { msgID: "node-id" });
    const again = await streams.publish("events.node.c", "1", { msgID: "node-id" });
    assert.deepEqual([again.seq, again.duplicate], [once.seq, true]);
  },
  async publish_with_expectations(client, streams) {
    const last = (await streams.publish("events.node.d", "1")).seq;
    const options = { expect: { lastSequence: last } };
    assert.equal((await streams.publish("events.node.d", "2", options)).seq, last + 1);
    await assert.rejects(streams.publish("events.node.d", "3", options), /wrong last sequence/);
  },
  async publish_without_a_stream(client, streams) {
    await assert.rejects(streams.publish("nowhere.node", "x", { retries: 0 }));
  },
  async account_info(client, streams, manager) {
    const info = await manager.getAccountInfo();
    assert.deepEqual([info.streams, info.limits.max_streams], [2, -1]);
  },
  async stream_info(client, streams, manager) {
    const before = (await manager.streams.info("events")).state;
    await streams.publish("events.node.e", "x".repeat(1000));
    const { config, created, state } = await manager.streams.info("events");
    assert.deepEqual([config.name, config.subjects, config.storage], ["events", ["events.>"], StorageType.File]);
    assert.deepEqual([state.messages, state.last_seq], [before.messages + 1, before.last_seq + 1]);
    assert.ok(state.bytes > before.bytes, `${before.bytes} ${state.bytes}`);
    for (const time of [created, state.first_ts, state.last_ts]) {
      assert.ok(time > "2024", time);
    }
    await assert.rejects(manager.streams.info("missing"), /stream not found/);
  },
  async stream_lists(client, streams, manager) {
    assert.deepEqual((await collect(manager.streams.names())).sort(), ["events", "memory"]);
    assert.deepEqual((await collect(manager.streams.list())).map((info) => info.config.name).sort(), ["events", "memory"]);
    assert.deepEqual((await collect(manager.streams.list("memory.x"))).map((info) => info.config.name), ["memory"]);
    assert.equal(await manager.streams.find("events.x"), "events");
    await assert.rejects(manager.streams.find("nowhere.x"));
    const stream = await streams.streams.get("events");
    assert.equal((await stream.info()).config.name, "events");
  },
  async get_message(client, streams, manager) {
    const lines = headers();
    lines.set("A", "1");
    const { seq } = await streams.publish("events.node.f", "got", { headers: lines });
    for (const get of [manager.streams, manager.direct]) {
      const message = await get.getMessage("events", { seq });
      assert.deepEqual([message.subject, message.seq, message.string(), message.header.get("A")], ["events.node.f", seq, "got", "1"]);
      assert.equal((await get.getMessage("events", { seq: 1, next_by_subj: "events.node.f" })).seq, seq);
      assert.equal(await get.getMessage("events", { seq: 999_999 }), null);
    }
  },
  async ordered_push(client, streams) {
    for (const name of ["events", "memory"]) {
      const subject = `${name}.node.push`;
      await fill(streams, subject, 50);
      const follower = await streams.consumers.getPushConsumer(name, { filter_subjects: subject });
      const messages = await follower.consume();
      assert.deepEqual((await take(messages, 50)).map((message) => message.string()), [...Array(50).keys()].map(String));
      await streams.publish(subject, "new");
      const message = await next(messages);
      assert.deepEqual([message.string(), message.info.pending, message.info.stream], ["new", 0, name]);
      assert.equal((await follower.info()).num_pending, 0);
      messages.stop();
    }
  },
  async ordered_consume(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.consume" });
    await fill(streams, "events.node.consume", 150);
    const messages = await follower.consume({ max_messages: 50 });
    assert.deepEqual((await take(messages, 150)).map((message) => message.string()), [...Array(150).keys()].map(String));
    messages.stop();
  },
  async ordered_consume_by_bytes(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.bytes" });
    await fill(streams, "events.node.bytes", 30, (number) => String(number).padEnd(1000, "-"));
    const messages = await follower.consume({ max_bytes: 100_000 });
    assert.deepEqual((await take(messages, 30)).map((message) => parseInt(message.string())), [...Array(30).keys()]);
    messages.stop();
  },
  // Requests expire without messages: the consumer requests again, and is not recreated.
  async ordered_consume_stays_idle(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.idle" });
    const messages = await follower.consume({ expires: 1000, idle_heartbeat: 500 });
    const events = [];
    (async () => {
      for await (const status of messages.status()) {
        events.push(status.type);
      }
    })();
    await streams.publish("events.node.idle", "first");
    const name = consumerOf(await next(messages));
    await sleep(3500);
    await streams.publish("events.node.idle", "second");
    const message = await next(messages);
    assert.deepEqual([message.string(), consumerOf(message)], ["second", name]);
    assert.ok(!events.includes("heartbeats_missed") && !events.includes("ordered_consumer_recreated"), String(events));
    messages.stop();
  },
  async ordered_fetch(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.fetch" });
    await fill(streams, "events.node.fetch", 7);
    const fetch = async (options) => (await collect(await follower.fetch(options))).map((message) => message.string());
    assert.deepEqual(await fetch({ max_messages: 4, expires: 5000 }), ["0", "1", "2", "3"]);
    // Fewer messages than requested are available.
    assert.deepEqual(await fetch({ max_messages: 5, expires: 1000 }), ["4", "5", "6"]);
    assert.deepEqual(await fetch({ max_messages: 5, expires: 1000 }), []);
  },
  async ordered_fetch_bytes(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.fetchbytes" });
    await fill(streams, "events.node.fetchbytes", 10, () => "x".repeat(1000));
    const got = [];
    const read = async () => {
      for await (const message of await follower.fetch({ max_bytes: 3500, expires: 5000 })) {
        got.push(message);
      }
    };
    // The client reports that the next message is too large.
    await assert.rejects(read(), /maxbytes/i);
    assert.equal(got.length, 3);
  },
  async ordered_next(client, streams) {
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.next" });
    await streams.publish("events.node.next", "1");
    assert.equal((await follower.next({ expires: 5000 })).string(), "1");
    assert.equal(await follower.next({ expires: 1000 }), null);
    await streams.publish("events.node.next", "2");
    assert.equal((await follower.next({ expires: 5000 })).string(), "2");
  },
  async ordered_from_somewhere(client, streams, manager) {
    const sequences = await fill(streams, "events.node.start", 5);
    for (const [config, first] of [
      [{ deliver_policy: DeliverPolicy.All }, "0"],
      [{ deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: sequences[2] }, "2"],
      [{ deliver_policy: DeliverPolicy.StartTime, opt_start_time: (await manager.streams.getMessage("events", { seq: sequences[0] })).timestamp }, "0"],
    ]) {
      const follower = await streams.consumers.get("events", { filter_subjects: "events.node.start", ...config });
      assert.equal((await follower.next({ expires: 5000 })).string(), first);
    }
  },
  async ordered_several_filters(client, streams) {
    for (const subject of ["events.node.many.a", "events.node.many.c", "events.node.many.b.1"]) {
      await streams.publish(subject, subject);
    }
    const follower = await streams.consumers.get("events", { filter_subjects: ["events.node.many.a", "events.node.many.b.*"] });
    const got = await collect(await follower.fetch({ max_messages: 2, expires: 5000 }));
    assert.deepEqual(got.map((message) => message.subject), ["events.node.many.a", "events.node.many.b.1"]);
  },
  async headers_only(client, streams) {
    await streams.publish("events.node.head", "12345");
    const follower = await streams.consumers.get("events", { filter_subjects: "events.node.head", headers_only: true });
    const message = await follower.next({ expires: 5000 });
    assert.deepEqual([message.data.length, message.headers.get("Nats-Msg-Size")], [0, "5"]);
  },
  async consumers(client, streams, manager) {
    const config = { name: "node-own", ack_policy: AckPolicy.None, filter_subject: "events.node.own" };
    await manager.consumers.add("events", config);
    for (let number = 0; number < 3; number++) {
      await streams.publish("events.node.own", "x");
      await streams.publish("events.node.others", "x");
    }
    const follower = await streams.consumers.get("events", "node-own");
    assert.equal((await collect(await follower.fetch({ max_messages: 3, expires: 5000 }))).length, 3);
    const info = await manager.consumers.info("events", "node-own");
    assert.deepEqual([info.num_pending, info.config.filter_subject], [0, "events.node.own"]);
    assert.ok((await collect(manager.consumers.list("events"))).some((one) => one.name === "node-own"));
    assert.equal(await manager.consumers.delete("events", "node-own"), true);
    await assert.rejects(manager.consumers.info("events", "node-own"), /consumer not found/);
  },
  async api_errors(client, streams, manager) {
    await assert.rejects(manager.streams.delete("missing"), /stream not found/);
    await assert.rejects(manager.consumers.add("missing", { ack_policy: AckPolicy.None }), /stream not found/);
  },
  async an_identical_stream_is_there(client, streams, manager) {
    const { config } = await manager.streams.info("events");
    assert.equal((await manager.streams.add(config)).config.name, "events");
    assert.equal((await manager.streams.update("events", config)).config.name, "events");
  },
  async a_domain_that_is_not_there(client) {
    await assert.rejects(jetstreamManager(client, { domain: "elsewhere" }), (error) => !/timeout/i.test(String(error)));
  },
};

// Unsupported features and missing objects.
const ofRefusals = {
  async refusals(client, streams, manager) {
    const consumer = (config, words) =>
      assert.rejects(manager.consumers.add("events", { ack_policy: AckPolicy.None, ...config }), words);
    await consumer({ durable_name: "d" }, /durable/);
    await consumer({ ack_policy: AckPolicy.Explicit }, /ack_policy/);
    await consumer({ replay_policy: ReplayPolicy.Original }, /replay_policy/);
    await consumer({ pause_until: new Date(4e12).toISOString() }, /pause_until/);
    await consumer({ priority_groups: ["a"], priority_policy: "overflow" }, /priority/);
    await consumer({ deliver_policy: DeliverPolicy.Last, filter_subject: "events.node.a" }, /deliver_policy last/);
    await consumer({ deliver_policy: DeliverPolicy.LastPerSubject, filter_subject: "events.>" }, /last_per_subject/);
    await consumer({ max_batch: 1 }, /max_batch/);
    await assert.rejects(manager.streams.add({ name: "other", subjects: ["other.>"] }), /configuration/);
    await assert.rejects(manager.streams.add({ name: "events", subjects: ["events.>"], max_msgs: 5 }), /max_msgs/);
    await assert.rejects(manager.streams.update("events", { max_msgs: 5 }), /max_msgs/);
    await assert.rejects(manager.streams.delete("events"), /configuration/);
    await assert.rejects(manager.streams.purge("events"), /configuration/);
    await assert.rejects(manager.streams.deleteMessage("events", 1), /configuration/);
    await assert.rejects(manager.streams.info("events", { subjects_filter: ">" }), /subjects_filter/);
    await assert.rejects(manager.streams.getMessage("events", { last_by_subj: "events.node.a" }), /last/);
    const lines = headers();
    lines.set("Nats-Batch-Id", "b");
    await assert.rejects(streams.publish("events.node.a", "x", { headers: lines }), /condition/);
  },
};

// Prints `KIND MICROSECONDS kept|reset` for each kind of ordered consumer: the delay of the first message after a silence, and
// whether the consumer is the same.
async function idle(seconds) {
  setTimeout(() => process.exit(1), seconds * 1000 + PATIENCE);
  const client = await root();
  const { consumers } = jetstream(client);
  const subject = "events.node.silence";
  const config = { filter_subjects: subject };
  const followers = { push: await consumers.getPushConsumer("events", config), pull: await consumers.get("events", config) };
  const before = new Map();
  const after = new Set();
  for (const [kind, follower] of Object.entries(followers)) {
    const callback = (message) => {
      const microseconds = (process.hrtime.bigint() - BigInt(message.string())) / 1000n;
      if (!before.has(kind)) {
        before.set(kind, consumerOf(message));
        return;
      }
      console.log(kind, String(microseconds), consumerOf(message) === before.get(kind) ? "kept" : "reset");
      after.add(kind);
    };
    await follower.consume({ callback });
  }
  const publish = () => client.publish(subject, String(process.hrtime.bigint()));
  publish();
  await eventually(() => before.size === 2);
  console.log("waiting");
  await sleep(seconds * 1000);
  publish();
  await eventually(() => after.size === 2);
  process.exit();
}

if (process.argv[3] === "idle") {
  await idle(Number(process.argv[4]));
}

let failed = false;
for (const [name, run] of Object.entries({ ...core, ...ofStreams, ...ofRefusals })) {
  const client = await root();
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("it does not end")), PATIENCE);
  });
  try {
    const work = name in core ? run(client) : run(client, jetstream(client), await jetstreamManager(client));
    await Promise.race([work, late]);
    console.log("ok", name);
  } catch (error) {
    failed = true;
    console.log("FAIL", name, String(error.message ?? error).replaceAll("\n", " ").slice(0, 300));
  }
  clearTimeout(timer);
  await client.close();
}
console.log("done");
process.exit(failed ? 1 : 0);
