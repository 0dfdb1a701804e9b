/** What operators have done, newest first. */
import { Dialog } from "../components/dialog.js";
import { Facts } from "../components/facts.js";
import { Paged, usePages } from "../components/paged.js";
import { Table } from "../components/table.js";
import { Time } from "../components/time.js";
import { UNKNOWN, count, inline, known, plain, position } from "../format.js";
import { html } from "../html.js";
import { href, route, setQuery } from "../router.js";

const SUBJECTS_SHOWN = 3;
const VALUE_SHOWN = 32; // characters
const RESET = "flows reset"; // of which positions are told
const BEFORE_ALL = -1;
const FIELDS = { again: "times reassigned" };
const COLUMNS = [
  { key: "number", title: "No.", width: 4, align: "end", rank: 1, cell: (one) => plain(one.number) },
  { key: "time", title: "When", width: 7, cell: (one) => html`<${Time} at=${one.time} />` },
  {
    key: "who",
    title: "Who",
    width: 8,
    grow: 14,
    rank: 1,
    wrap: true,
    cell: (one) => html`<span class="clamped" title=${one.who}>${plain(one.who)}</span>`,
  },
  {
    key: "from",
    title: "From",
    width: 8,
    grow: 17,
    rank: 3,
    wrap: true,
    cell: (one) => html`<span class="clamped" title=${inline(one.from)}>${inline(one.from)}</span>`,
  },
  {
    key: "action",
    title: "Did",
    width: 9.5,
    grow: 12,
    wrap: true,
    cell: (one) =>
      html`${plain(one.action)}
        <span class="telephone cut"><${Outcome} of=${one} short /> ${plain(one.who)}</span>`,
  },
  {
    key: "subject",
    title: "To what",
    wrap: true,
    cell: (one) =>
      html`<a class="clamped" href=${entryLink(one)} title="all of it">
        <${Subjects} of=${one.subject} number=${one.count} most=${SUBJECTS_SHOWN} />
      </a>`,
  },
  {
    key: "change",
    title: "Before → after",
    rank: 2,
    wrap: true,
    cell: (one) => html`<div class="clamped"><${Difference} of=${one} most=${VALUE_SHOWN} /></div>`,
  },
  {
    key: "outcome",
    title: "Outcome",
    width: 12,
    rank: 1,
    wrap: true,
    cell: (one) => html`<div class="clamped"><${Outcome} of=${one} /></div>`,
  },
];

export function Audit({ query }) {
  const list = usePages("audit", query, { q: query.q });
  const shown = list.data?.items.find((one) => String(one.number) === query.entry);
  return html`<${Paged}
    title="Audit"
    search="Search the record"
    query=${query}
    list=${list}
    empty=${`Nothing has been done${query.q ? " that is like that" : " yet"}.`}
  >
    <${Table}
      columns=${COLUMNS}
      rows=${list.data?.items}
      rowKey=${(one) => String(one.number)}
      caption="what operators have done"
      skeleton=${25}
      stale=${list.stale}
      open=${entryLink}
      walk
    />
    ${shown && html`<${Entry} of=${shown} />`}
  <//>`;
}

function entryLink(one) {
  return href(["audit"], { ...route.get().query, entry: one.number });
}

/** All that is kept of one. */
function Entry({ of }) {
  return html`<${Dialog} title=${plain(of.action)} wide onClose=${() => setQuery({ entry: undefined })}>
    <${Facts}
      of=${[
        ["No.", plain(of.number)],
        ["When", html`<${Time} at=${of.time} />`],
        ["Who", plain(of.who)],
        ["From", inline(of.from)],
        ["To what", html`<${Subjects} of=${of.subject} number=${of.count} />`],
        ["Before → after", html`<${Difference} of=${of} />`],
        ["Outcome", html`<${Outcome} of=${of} />`],
      ]}
    />
  <//>`;
}

function Subjects({ of, number, most = Infinity }) {
  const all = Array.isArray(of) ? of : known(of) ? [of] : [];
  const shown = all.slice(0, most).map((one) => html`<code class="tag">${inline(one)}</code>`);
  const more = Math.max(number ?? 0, all.length) - shown.length;
  return html`<span title=${all.map(inline).join("\n")}>${shown}${more > 0 ? ` and ${count(more)} more` : ""}</span>`;
}

/** A line for each field that differs, if both are of fields. */
function Difference({ of, most = Infinity }) {
  const [before, after] = of.action === RESET ? ofEach(of.before, of.after) : [of.before, of.after];
  const write = of.action === RESET ? place : inline;
  if (!known(before) && !known(after)) return plain(null);
  if (!fields(before) || !fields(after)) return html`<${Step} from=${write(before)} to=${write(after)} most=${most} />`;
  const names = Object.keys({ ...before, ...after }).filter((name) => inline(before?.[name]) !== inline(after?.[name]));
  return names.map((name) => {
    const written = name === "skip" ? places : write;
    return html`<div key=${name}>
      <em>${FIELDS[name] ?? name.replaceAll("_", " ")}</em>${" "}
      <${Step} from=${written(before?.[name])} to=${written(after?.[name])} most=${most} />
    </div>`;
  });
}

/** Where the flows stood and stand: if all had the same position, it is told once. */
function ofEach(before, after) {
  const one = (value) => !known(value) || typeof value !== "object" || Array.isArray(value);
  const spread = (value, other) => Object.fromEntries(Object.keys(other).map((flow) => [flow, value]));
  if (one(before) && !one(after)) return [spread(before, after), after];
  if (one(after) && !one(before)) return [before, spread(after, before)];
  return [before, after];
}

/** A position; before the first update there is none. */
function place(value) {
  return value === BEFORE_ALL ? UNKNOWN : position(value);
}

function places(value) {
  return Array.isArray(value) ? value.map(place).join(", ") : inline(value);
}

function Outcome({ of, short }) {
  const words = (short ? [of.outcome] : [of.outcome, of.error]).filter(known).map(inline).join(": ");
  return html`<span class=${of.error || (of.outcome && of.outcome !== "done") ? "bad" : ""}>${plain(words)}</span>`;
}

function fields(value) {
  return !known(value) || (typeof value === "object" && !Array.isArray(value));
}

function Step({ from, to, most }) {
  return html`<code class="before">${cut(from, most)}</code> → <code>${cut(to, most)}</code>`;
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
