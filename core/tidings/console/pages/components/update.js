/** What is inside an update: its attributes and its payload, decoded as far as that can be. */
import { UNKNOWN, bytes } from "../format.js";
import { html } from "../html.js";
import { parseJson, writeJson } from "../json.js";

const PRETTY_LIMIT = 1000000; // characters
const KINDS = { json: "JSON", text: "text", bytes: "bytes" };

export function UpdateContent({ update }) {
  return html`
    <dl class="attributes">
      ${Object.entries(update.attributes ?? {}).map(
        ([name, value]) =>
          html`<div>
            <dt>${name}</dt>
            <dd>${value}</dd>
          </div>`,
      )}
    </dl>
    <${Payload} payload=${update.payload} size=${update.size} />
  `;
}

function Payload({ payload, size }) {
  if (!payload) return html`<p class="empty">no payload (${UNKNOWN})</p>`;
  return html`<pre class="payload" tabindex="0" aria-label="payload">${written(payload)}</pre>
    <p class="empty payload-form">${toldOf(payload, size)}</p>
    ${payload.reason && html`<p class="bad">It is no ${payload.form} that can be shown: ${payload.reason}</p>`}`;
}

/** What the payload is, how large, and whether all of it is there. */
function toldOf({ as, form, reason, truncated }, size) {
  const kind = form && !reason ? `${form}, decoded` : KINDS[as];
  return `${kind}; ${bytes(size)}${truncated ? ", of which only the beginning is shown" : ""}`;
}

function written({ as, value }) {
  if (as === "json") return pretty(typeof value === "string" ? tryJson(value) : value);
  if (as === "bytes") return hexDump(value);
  return String(value);
}

/** On lines of its own, each in its place; all on one line, if that were mostly spaces. */
function pretty(value) {
  const text = writeJson(value, 2);
  return text.length <= PRETTY_LIMIT ? text : writeJson(value);
}

function tryJson(text) {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

/** Sixteen bytes a line: where, in hexadecimal, as text. */
function hexDump(base64) {
  const raw = atob(base64);
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const row = [...raw.slice(at, at + 16)];
    const hex = row.map((one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    const text = row.map((one) => (one >= " " && one <= "~" ? one : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
