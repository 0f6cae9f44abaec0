"use strict";

// Bounds of the page's memory. Full: the oldest entry is dropped.
const BIDS_KEPT = 500; // per lot, for the curve
const LOTS_KEPT = 200; // a closed lot is dropped before an open one
const NOTICES_KEPT = 4;
const BIDS_SHOWN = 25;

const RENDER_EVERY_MS = 80;
const ANNOUNCE_EVERY_MS = 3000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 8000;
// The wait after the server asked clients to stay away (close code 1013).
const RETRY_SHED_MS = 3000;
const RESUMED_SHOWN_MS = 4000;
const BID_ATTEMPT_MS = 10000;
const BID_TIMEOUT_MS = 30000;
// An accepted bid that has not arrived after this time: the connection is stale.
const ECHO_TIMEOUT_MS = 5000;
const PRICE_MAX = Number.MAX_SAFE_INTEGER;

const filter = document.body.dataset.filter;
const element = (id) => document.getElementById(id);
const numbers = new Intl.NumberFormat("en");
const format = (number) => numbers.format(number);
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const setText = (id, text) => {
  const node = element(id);
  if (node.textContent !== text) node.textContent = text;
};

// ---- Lots: the state that the records of the stream produce ----

/** name → { name, subject, title, start, price, bidder, count, isOpen, history } in the order of their opening. */
const lots = new Map();
let lastSequence = 0;

function clearLots() {
  lots.clear();
  lastSequence = 0;
  shown.rows = null;
}

function newLot(name, subject) {
  lots.delete(name);
  if (lots.size >= LOTS_KEPT) {
    const all = [...lots.values()];
    lots.delete((all.find((lot) => !lot.isOpen && lot.name !== shown.name) ?? all[0]).name);
  }
  const lot = { name, subject, title: name, start: null, price: 0, bidder: "", count: 0, isOpen: true, history: [] };
  lots.set(name, lot);
  return lot;
}

function remember(lot, entry) {
  lot.history.push(entry);
  if (lot.history.length > BIDS_KEPT) lot.history.shift();
}

// The gate does not check titles: any JSON.
const clip = (text, size) => (typeof text === "string" ? text.slice(0, size) : "");

function applyRecord({ seq, subject, time, data }) {
  // Sent again after a reconnect.
  if (seq <= lastSequence) return;
  lastSequence = seq;
  const [root, name, verb, extra] = subject.split(".");
  if (extra !== undefined || typeof data !== "object" || data === null) return;
  const at = Date.parse(time.replace(/(\.\d{3})\d*/, "$1"));
  const known = () => lots.get(name) ?? newLot(name, `${root}.${name}`);
  if (verb === "open") {
    const lot = newLot(name, `${root}.${name}`);
    lot.title = clip(data.title, 120) || name;
    lot.start = lot.price = Number(data.price) || 0;
    remember(lot, { seq, at, price: lot.price, opened: true });
  } else if (verb === "bid") {
    const lot = known();
    lot.price = Number(data.price) || 0;
    lot.bidder = clip(data.bidder, 64);
    lot.count += 1;
    remember(lot, { seq, at, price: lot.price, bidder: lot.bidder });
  } else if (verb === "close") {
    const lot = known();
    lot.isOpen = false;
    lot.price = Number(data.price ?? lot.price);
    lot.bidder = clip(data.bidder ?? lot.bidder, 64);
    lot.count = Number(data.bids ?? lot.count);
    remember(lot, { seq, at, price: lot.price, closed: true });
  }
}

function applyGap({ first, last, cause }) {
  const range = first === last ? `Record ${first} is` : `Records ${first} to ${last} are`;
  const causes = {
    removed: "removed by the stream's retention",
    damaged: "damaged on disk",
    torn: "cut off by a crash",
    slow: "skipped because this page read too slowly",
    size: "too long for this page",
  };
  const text = `${range} missing: ${causes[cause] ?? cause}.`;
  notify("gap", "warn", `${text} Prices are right again with the next bid of each lot.`);
  for (const lot of lots.values()) remember(lot, { seq: last, gap: text });
  lastSequence = Math.max(lastSequence, last);
}

// ---- Connection: WebSocket, or server-sent events where that fails ----

const connection = {
  epoch: null, // known from the first message on; then the page can resume
  close: null, // ends the current transport
  failures: 0,
  isLive: false,
  hasOpened: false, // a WebSocket was open once
  useEvents: !("WebSocket" in window) || new URLSearchParams(location.search).get("transport") === "sse",
  timer: 0,
};

function setState(state, text) {
  element("state").dataset.state = state;
  setText("state-text", text);
}

function connect() {
  clearTimeout(connection.timer);
  connection.close?.();
  const resumesAfter = connection.epoch === null ? null : `${connection.epoch}-${lastSequence}`;
  if (resumesAfter === null) clearLots();
  connection.isLive = false;
  setState("connecting", connection.failures > 0 || resumesAfter ? "Reconnecting…" : "Connecting…");
  const path = `/subscribe/${encodeURIComponent(filter)}?from=${resumesAfter ?? "all"}`;
  const transport = connection.useEvents ? openEvents : openWebSocket;
  let isCurrent = true;
  const current = (call) => (...values) => isCurrent && call(...values);
  const close = transport(path, {
    opened: current(() => setState("catching-up", resumesAfter ? "Resuming…" : "Loading…")),
    received: current((message, id) => receive(message, id, resumesAfter)),
    ended: current((code, reason) => {
      isCurrent = false;
      retry(code, reason);
    }),
  });
  connection.close = () => {
    isCurrent = false;
    connection.close = null;
    close();
  };
}

function openWebSocket(path, { opened, received, ended }) {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${path}`);
  socket.onopen = () => {
    connection.hasOpened = true;
    opened();
  };
  socket.onmessage = ({ data }) => received(JSON.parse(data), null);
  socket.onclose = ({ code, reason }) => ended(code, reason);
  return () => socket.close();
}

function openEvents(path, { opened, received, ended }) {
  const source = new EventSource(path);
  const pass = ({ data, lastEventId }) => received(JSON.parse(data), lastEventId);
  source.onopen = opened;
  source.onmessage = pass;
  source.addEventListener("gap", pass);
  source.addEventListener("reset", pass);
  // The end of the past has no event: an open connection counts as live.
  const live = setInterval(() => source.readyState === EventSource.OPEN && becomeLive(false), 500);
  source.onerror = () => {
    clearInterval(live);
    source.close();
    ended(0, "");
  };
  return () => {
    clearInterval(live);
    source.close();
  };
}

function receive(message, id, resumesAfter) {
  if (message.gap) {
    applyGap(message.gap);
  } else if (message.reset) {
    clearLots();
    notify("reset", "warn", "The stream was started anew; everything is loaded again.");
    connection.epoch = null;
    if (message.reset.cause !== "epoch") return connect();
  } else if (message.start) {
    setPosition(message.start);
  } else if (message.position) {
    setPosition(message.position);
    becomeLive(resumesAfter !== null);
  } else if (message.seq) {
    applyRecord(message);
  }
  if (id) setPosition(id);
  scheduleRender();
}

/** `epoch-sequence`; the epoch can exceed the exact integers of JavaScript. */
function setPosition(id) {
  const [epoch, sequence] = id.split("-");
  connection.epoch = epoch;
  lastSequence = Math.max(lastSequence, Number(sequence));
}

function becomeLive(isResumed) {
  if (connection.isLive) return;
  connection.isLive = true;
  connection.failures = 0;
  dismiss("refused");
  setState("live", isResumed ? "Live, resumed" : "Live");
  if (isResumed) setTimeout(() => connection.isLive && setState("live", "Live"), RESUMED_SHOWN_MS);
  scheduleRender();
}

function retry(code, reason) {
  connection.close = null;
  connection.isLive = false;
  const backoff = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** connection.failures);
  connection.failures += 1;
  const least = code === 1013 ? RETRY_SHED_MS : 0;
  if (code === 1013 || code === 1008) notify("refused", "warn", `The server closed the connection: ${reason}`);
  // Spread, so that not all pages return at once after a restart.
  const until = performance.now() + Math.max(least, backoff * (0.5 + Math.random() / 2));
  if (connection.failures >= 2) findReason();
  const wait = () => {
    const left = until - performance.now();
    if (left <= 0) return connect();
    setState("waiting", `Reconnecting in ${Math.ceil(left / 1000)} s`);
    connection.timer = setTimeout(wait, Math.min(left, 250));
  };
  clearTimeout(connection.timer);
  wait();
}

/** A browser hides why a connection was refused; a plain request shows it. */
async function findReason() {
  const abort = new AbortController();
  try {
    const path = `/subscribe/${encodeURIComponent(filter)}`;
    const headers = { Accept: "text/event-stream" };
    const answer = await fetch(path, { headers, signal: abort.signal });
    if (!answer.ok) return notify("refused", "bad", clip(await answer.text(), 300) || `The server answers ${answer.status}.`);
    // Events pass where WebSockets do not, such as through some proxies.
    if (!connection.hasOpened) connection.useEvents = true;
  } catch {
    // The server does not answer.
  } finally {
    abort.abort();
  }
}

function reconnectNow() {
  if (!connection.isLive && connection.close === null) connect();
}
addEventListener("online", reconnectNow);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && reconnectNow());

// ---- Notices ----

function notify(kind, style, text) {
  dismiss(kind);
  const box = document.createElement("div");
  box.className = `notice ${style}`;
  box.dataset.kind = kind;
  box.setAttribute("role", "status");
  const words = document.createElement("span");
  words.textContent = text;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Dismiss";
  button.onclick = () => box.remove();
  box.append(words, button);
  element("notices").append(box);
  while (element("notices").childElementCount > NOTICES_KEPT) element("notices").firstElementChild.remove();
}

function dismiss(kind) {
  for (const box of document.querySelectorAll("#notices > div")) if (box.dataset.kind === kind) box.remove();
}

// ---- View ----

const shown = { name: null, isNew: false, rows: null, announced: 0, announcement: "", timer: 0 };

function scheduleRender() {
  shown.timer ||= setTimeout(() => {
    shown.timer = 0;
    render();
  }, RENDER_EVERY_MS);
}

function chosenName() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
}

/** The lot of the address; else the one that was shown; else the newest open one, or the newest. */
function chosenLot() {
  const name = chosenName();
  if (name) return lots.get(name);
  if (shown.name !== null && lots.has(shown.name)) return lots.get(shown.name);
  const all = [...lots.values()];
  return all.findLast((lot) => lot.isOpen) ?? all.at(-1);
}

function render() {
  const lot = chosenLot();
  if (shown.name !== (lot?.name ?? null)) {
    shown.name = lot?.name ?? null;
    shown.rows = null;
    setOutcome("", "");
    amount.isTouched = false;
    shown.isNew = true;
  }
  element("lot").hidden = !lot;
  element("empty").hidden = Boolean(lot);
  renderList(lot);
  if (shown.isNew) showLink();
  if (!lot) return renderEmpty();
  document.title = `${format(lot.price)}: ${lot.title}`;
  setText("lot-title", lot.title);
  setText("lot-name", lot.title === lot.name ? "" : lot.name);
  setText("price", format(lot.price));
  element("price").dataset.price = lot.price;
  setText("price-label", lot.isOpen ? (lot.count ? "Price" : "Opening price") : "Final price");
  const isMine = lot.bidder !== "" && lot.bidder === bidderName();
  setText("leader", lot.bidder || "no bids yet");
  setText("leader-label", lot.isOpen ? (isMine ? "Leading: you" : "Leading") : "Winner");
  element("leader-box").classList.toggle("mine", isMine);
  renderCurve(lot);
  renderBids(lot);
  renderForm(lot, isMine);
  announce(lot);
}

function renderEmpty() {
  const name = chosenName();
  const isLoading = !connection.isLive && lots.size === 0;
  setText("empty-title", isLoading ? "Loading the lots…" : name ? `There is no lot ${name}` : "No lot is open");
  element("empty-help").hidden = isLoading;
  const root = filter.split(".")[0];
  const subject = `${/[*>]/.test(root) ? "auction" : root}.${/^[\w-]+$/.test(name) ? name : "lot1"}.open`;
  setText("empty-command", `curl -d '{"price":100,"title":"A painting"}' ${location.origin}/publish/${subject}`);
}

function renderList(current) {
  const all = [...lots.values()];
  const isOpen = all.filter((lot) => lot.isOpen);
  const isClosed = all.filter((lot) => !lot.isOpen).reverse();
  element("lots").hidden = all.length < 2 && Boolean(current || all.length === 0);
  element("open-title").hidden = isOpen.length === 0;
  element("closed").hidden = isClosed.length === 0;
  setText("closed-count", `(${isClosed.length})`);
  renderLinks(element("open-lots"), isOpen, current);
  renderLinks(element("closed-lots"), isClosed, current);
}

function renderLinks(list, all, current) {
  while (list.childElementCount > all.length) list.lastElementChild.remove();
  all.forEach((lot, at) => {
    let item = list.children[at];
    if (!item) {
      item = document.createElement("li");
      const link = document.createElement("a");
      link.append(document.createElement("b"), document.createElement("span"));
      item.append(link);
      list.append(item);
    }
    const link = item.firstElementChild;
    const hash = `#${encodeURIComponent(lot.name)}`;
    if (link.getAttribute("href") !== hash) link.href = hash;
    if (lot === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    const words = [lot.title, format(lot.price) + (lot.isOpen ? "" : lot.bidder ? `, ${lot.bidder}` : ", not sold")];
    words.forEach((text, part) => {
      if (link.children[part].textContent !== text) link.children[part].textContent = text;
    });
  });
}

/** Scrolls the list of lots to the shown one, without moving the page. */
function showLink() {
  shown.isNew = false;
  const link = document.querySelector("nav [aria-current]");
  const list = link?.closest("ul");
  if (list) list.scrollLeft = link.offsetLeft - list.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
}

const CURVE = { width: 600, height: 160, margin: 12 };

/** A step line: a price holds until the next bid. Across a gap the line is dashed. */
function renderCurve(lot) {
  const points = lot.history.filter((entry) => entry.gap === undefined);
  const [first, last] = [points[0], points.at(-1)];
  element("curve-dot").hidden = !last;
  if (!last) return;
  const prices = points.map((point) => point.price);
  const [low, high] = [Math.min(...prices), Math.max(...prices)];
  const span = Math.max(1, last.at - first.at);
  const isSingle = points.length < 2;
  const x = (point) => (isSingle ? CURVE.width : ((point.at - first.at) / span) * CURVE.width).toFixed(1);
  const room = CURVE.height - 2 * CURVE.margin;
  const y = (point) =>
    (CURVE.height - CURVE.margin - (high > low ? ((point.price - low) / (high - low)) * room : 0)).toFixed(1);
  let line = isSingle ? `M0 ${y(first)}H${CURVE.width}` : "";
  let missing = "";
  let previous = null;
  let isBroken = false;
  for (const entry of lot.history) {
    if (isSingle) break;
    if (entry.gap !== undefined) {
      isBroken = previous !== null;
      continue;
    }
    if (previous === null) {
      line += `M${x(entry)} ${y(entry)}`;
    } else if (isBroken) {
      missing += `M${x(previous)} ${y(previous)}L${x(entry)} ${y(entry)}`;
      line += `M${x(entry)} ${y(entry)}`;
    } else {
      line += `H${x(entry)}V${y(entry)}`;
    }
    [previous, isBroken] = [entry, false];
  }
  element("curve-line").setAttribute("d", line);
  element("curve-missing").setAttribute("d", missing);
  const area = line.replace(/(?!^)M(\S+) (\S+)/g, "L$1 $2");
  element("curve-area").setAttribute("d", `${area}V${CURVE.height}H0Z`);
  const dot = element("curve-dot").style;
  dot.left = `${(x(last) / CURVE.width) * 100}%`;
  dot.top = `calc(var(--curve) * ${y(last) / CURVE.height})`;
  const label = (point) => `${clock(point.at)} · ${format(point.price)}`;
  setText("curve-start", label(first));
  setText("curve-end", isSingle ? "" : label(last));
  const bids = lot.count === 1 ? "1 bid" : `${format(lot.count)} bids`;
  setText("curve-facts", lot.start === null ? bids : `${bids}, opened at ${format(lot.start)}`);
  setText("curve-text", `Price from ${format(low)} to ${format(high)} in ${bids}`);
}

function rowOf(entry, isFresh) {
  const row = document.createElement("li");
  row.dataset.seq = entry.seq;
  if (entry.gap !== undefined) {
    row.className = "gap";
    row.textContent = entry.gap;
    return row;
  }
  const isMine = entry.bidder !== undefined && entry.bidder === bidderName();
  row.className = `${isFresh ? "fresh" : ""} ${isMine ? "mine" : ""}`;
  const price = document.createElement("b");
  price.textContent = format(entry.price);
  const name = document.createElement("bdi");
  name.className = "name";
  name.textContent = entry.opened ? "opened" : entry.closed ? "closed" : entry.bidder + (isMine ? " (you)" : "");
  const time = document.createElement("time");
  time.dateTime = new Date(entry.at).toISOString();
  time.textContent = clock(entry.at);
  row.append(price, name, time);
  return row;
}

function renderBids(lot) {
  const list = element("bids");
  const entries = lot.history.slice(-BIDS_SHOWN);
  const isFirst = shown.rows === null;
  // Entries behind the last rendered one; all if that is no longer there.
  const fresh = isFirst ? entries : entries.slice(entries.indexOf(shown.rows) + 1);
  if (isFirst || fresh.length === entries.length) list.replaceChildren();
  for (const entry of fresh) list.prepend(rowOf(entry, !isFirst));
  while (list.childElementCount > BIDS_SHOWN) list.lastElementChild.remove();
  shown.rows = entries.at(-1) ?? null;
  setText("bids-count", lot.count ? `(${format(lot.count)})` : "");
  const more = lot.count - lot.history.slice(-BIDS_SHOWN).filter((entry) => entry.bidder !== undefined).length;
  setText("bids-more", more > 0 ? `and ${format(more)} earlier` : "");
}

/** Screen readers get the price at most every few seconds. */
function announce(lot) {
  const leads = lot.bidder ? `, ${lot.bidder} ${lot.isOpen ? "leads" : "won"}` : "";
  const text = `${lot.isOpen ? "Price" : "Closed at"} ${format(lot.price)}${leads}`;
  if (text === shown.announcement || !connection.isLive) return;
  const wait = shown.announced + ANNOUNCE_EVERY_MS - performance.now();
  if (wait > 0) return void setTimeout(scheduleRender, wait);
  [shown.announcement, shown.announced] = [text, performance.now()];
  setText("announcement", text);
}

addEventListener("hashchange", render);

// ---- Bids ----

/** As in the gate: longer names are rejected. */
const BIDDER_BYTES_MAX = 64;
const NAME_KEY = "stilling-bidder";
const amount = { field: element("amount"), isTouched: false };
const bidderName = () => element("bidder").value.trim();
let isSending = false;

/** 1, 2 or 5 times a power of ten, about a twentieth of the price. */
function increment(price) {
  const about = Math.max(1, price / 20);
  const power = 10 ** Math.floor(Math.log10(about));
  return power * (about / power >= 5 ? 5 : about / power >= 2 ? 2 : 1);
}

/** A price as entered: digits, with separators between groups of three. */
function parsePrice(text) {
  const digits = text.trim().replace(/[\s,.'’](?=\d{3}(\D|$))/g, "");
  return /^\d{1,16}$/.test(digits) && Number(digits) <= PRICE_MAX ? Number(digits) : null;
}

function renderForm(lot, isMine) {
  element("form").hidden = !lot.isOpen;
  element("result").hidden = lot.isOpen;
  setText("bid-title", lot.isOpen ? "Your bid" : "Closed");
  if (!lot.isOpen) {
    const by = isMine ? "you" : lot.bidder;
    return setText("result", by ? `Sold to ${by} for ${format(lot.price)}.` : "Closed without a bid.");
  }
  const step = increment(lot.price);
  // A suggestion, until the bidder enters another price.
  if (!amount.isTouched && !isSending) amount.field.value = format(lot.price + step);
  renderRaises(lot, step);
  const price = parsePrice(amount.field.value);
  const isLow = price !== null && price <= lot.price && !isSending;
  setText("hint", isLow ? `The price is ${format(lot.price)} now: bid more than that.` : "");
  const button = element("send");
  button.setAttribute("aria-disabled", String(isSending));
  setText("send", isSending ? "Sending…" : price === null ? "Bid" : `Bid ${format(price)}`);
}

function renderRaises(lot, step) {
  const group = element("quick");
  [step, 2 * step, 10 * step].forEach((by, at) => {
    let button = group.children[at + 1];
    if (!button) {
      button = document.createElement("button");
      button.type = "button";
      button.onclick = () => {
        const shownLot = chosenLot();
        if (!shownLot) return;
        amount.field.value = format(shownLot.price + Number(button.dataset.by));
        amount.isTouched = true;
        render();
      };
      group.append(button);
    }
    button.dataset.by = by;
    if (button.textContent !== `+${format(by)}`) button.textContent = `+${format(by)}`;
  });
}

function setOutcome(kind, text, field) {
  const outcome = element("outcome");
  outcome.dataset.kind = kind;
  setText("outcome", text);
  for (const id of ["bidder", "amount"]) element(id).setAttribute("aria-invalid", String(id === field));
  if (field) element(field).focus();
}

// `crypto.randomUUID` exists in secure contexts only.
const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Publishes a bid. Attempts share an id, so the server stores it at most once, also across a restart. */
async function publishBid(lot, bid) {
  const id = newId();
  const until = performance.now() + BID_TIMEOUT_MS;
  for (let wait = 250; ; wait = Math.min(2 * wait, 2000)) {
    let reason = "the server does not answer";
    try {
      const abort = new AbortController();
      const timer = setTimeout(() => abort.abort(), BID_ATTEMPT_MS);
      const answer = await fetch(`/publish/${encodeURIComponent(lot.subject)}.bid`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "Nats-Msg-Id": id },
        body: JSON.stringify(bid),
        signal: abort.signal,
      });
      const text = (await answer.text()).trim();
      clearTimeout(timer);
      if (answer.ok) return { kind: "accepted", sequence: JSON.parse(text).last };
      reason = clip(text, 300) || `the server answers ${answer.status}`;
      if (answer.status !== 503) return { kind: "rejected", reason };
    } catch {
      // The bid may have been stored.
    }
    if (performance.now() > until) return { kind: "unknown", reason };
    setOutcome("pending", `No answer yet (${reason}). Sending again…`);
    await sleep(wait);
  }
}

async function submitBid() {
  const lot = chosenLot();
  if (!lot || isSending) return;
  const [bidder, price] = [bidderName(), parsePrice(amount.field.value)];
  if (!bidder) return setOutcome("rejected", "Enter your name first.", "bidder");
  if (new TextEncoder().encode(bidder).length > BIDDER_BYTES_MAX) {
    return setOutcome("rejected", `The name is longer than ${BIDDER_BYTES_MAX} bytes.`, "bidder");
  }
  if (price === null) return setOutcome("rejected", "Enter the price as a whole number.", "amount");
  try {
    localStorage.setItem(NAME_KEY, bidder);
  } catch {
    // Storage is blocked: the name is not kept.
  }
  isSending = true;
  setOutcome("", "");
  render();
  const outcome = await publishBid(lot, { price, bidder });
  isSending = false;
  amount.isTouched = false;
  if (outcome.kind === "accepted") {
    setOutcome("accepted", `Your bid of ${format(price)} was accepted.`);
    setTimeout(() => connection.isLive && lastSequence < outcome.sequence && connect(), ECHO_TIMEOUT_MS);
  } else if (outcome.kind === "rejected") {
    setOutcome("rejected", `Your bid of ${format(price)} was rejected: ${outcome.reason}.`);
  } else {
    setOutcome("pending", `It is not known whether your bid of ${format(price)} was stored: ${outcome.reason}. See the list of bids.`);
  }
  render();
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submitBid();
});
amount.field.addEventListener("input", () => {
  amount.isTouched = amount.field.value.trim() !== "";
  render();
});
element("bidder").addEventListener("input", () => {
  shown.rows = null;
  scheduleRender();
});
try {
  element("bidder").value = localStorage.getItem(NAME_KEY) ?? "";
} catch {
  // Storage is blocked.
}

connect();
render();
