/** What the server tells by itself: one stream of events for all pages, opened again whenever it breaks. */
import { loadSession } from "./account.js";
import { parseJson } from "./json.js";
import { endSession, session } from "./session.js";
import { store } from "./store.js";

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 15000;
const HIDDEN_MS = 20000; // after which a page that nobody sees gives its connection back: browsers have six for a server
const KINDS = ["overview", "map", "rights", "away", "back", "expired"];

/** "connecting", "live" or "lost". */
export const connection = store("connecting");
/** Since when ZooKeeper is away, and why; null while it is there. */
export const away = store(null);
/** When the server last told something new, in ms. */
export const heard = store(null);

const listeners = new Map();
let source = null;
let retry = 0;
let failures = 0;
let opened = false;
let wanted = false;
let hiding = 0;

/** Call `listener` with the data of each event of this kind. "gap": events may have been missed, so ask anew. */
export function listen(kind, listener) {
  if (!listeners.has(kind)) listeners.set(kind, new Set());
  listeners.get(kind).add(listener);
  return () => listeners.get(kind).delete(listener);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => source && closeSource(), HIDDEN_MS);
  else if (wanted && !source) startLive();
});

export function startLive() {
  stopLive();
  wanted = true;
  connection.set("connecting");
  source = new EventSource("api/events");
  source.onopen = () => {
    failures = 0;
    connection.set("live");
    away.set(null); // if it is, that is told at once
    if (opened) tell("gap", null);
    opened = true;
  };
  source.onerror = () => tryAgain();
  for (const kind of KINDS) source.addEventListener(kind, (event) => receive(kind, event.data));
}

export function stopLive() {
  wanted = false;
  closeSource();
}

function closeSource() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function tryAgain() {
  closeSource();
  connection.set("lost");
  const wait = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** failures++) * (0.5 + Math.random() / 2);
  retry = setTimeout(async () => {
    // An EventSource does not tell why it broke: whether the sign-in has expired is asked apart.
    await loadSession().catch(() => {});
    if (wanted && session.get()) startLive();
  }, wait);
}

function receive(kind, text) {
  const data = text ? parseJson(text) : null;
  if (kind === "expired") endSession();
  else if (kind === "away") away.set({ since: Date.now(), reason: data?.reason ?? null });
  else if (kind === "back") away.set(null);
  else if (kind === "rights") askAgain(data);
  if (!away.get()) heard.set(Date.now()); // while it is away, what is told is what was known before
  tell(kind, data);
}

/** The console may have come to know, since we asked who we are, that nobody can act there; or that they can. */
function askAgain(rights) {
  const me = session.get();
  if (me && me.read_only !== rights?.read_only) loadSession().catch(() => {});
}

function tell(kind, data) {
  for (const listener of [...(listeners.get(kind) ?? [])]) listener(data);
}
