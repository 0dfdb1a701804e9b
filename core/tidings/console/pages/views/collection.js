/** Collection: what is left of streams, and what has been collected. */
import { Empty, Partial, Problem } from "../components/notice.js";
import { Table } from "../components/table.js";
import { Time } from "../components/time.js";
import { UNKNOWN, bytes, count, inline, known, plural } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href } from "../router.js";

const COLUMNS = [
  {
    key: "stream",
    title: "Stream",
    width: 14,
    cell: (one) => html`<a class="cut" href=${href(["streams", one.stream])}>${one.stream}</a>`,
  },
  {
    key: "policies",
    title: "Policies",
    wrap: true,
    cell: (one) => (one.policies ?? []).map((policy) => html`<span class="tag">${inline(policy)}</span>`),
  },
  { key: "updates", title: "Updates", width: 7, align: "end", cell: (one) => count(one.updates) },
  { key: "survivors", title: "Survivors", width: 7, align: "end", cell: (one) => count(one.survivors) },
  { key: "kept", title: "Kept", width: 9, rank: 2, cell: (one) => html`<${Kept} of=${one} />` },
  { key: "collected", title: "Collected", width: 7, align: "end", cell: (one) => count(one.collected) },
  { key: "tombstones", title: "Tombstones", width: 7, align: "end", rank: 3, cell: (one) => count(one.tombstones) },
  { key: "bytes", title: "Size", width: 6, align: "end", rank: 3, cell: (one) => bytes(one.bytes) },
  { key: "last", title: "Last run", width: 7, align: "end", cell: (one) => html`<${Time} at=${one.last_run} />` },
  { key: "problem", title: "Problem", wrap: true, cell: (one) => html`<${Trouble} of=${one} />` },
];

export function Collection() {
  const { data, error } = useQuery("gc");
  return html`<div class="page">
    <header class="page-head"><h1>Collection</h1></header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    <${Table}
      columns=${COLUMNS}
      rows=${data?.items}
      rowKey=${(one) => one.stream}
      caption="collected streams"
      skeleton=${4}
      walk
    />
    ${data?.items.length === 0 && html`<${Empty}>No stream is collected.<//>`}
  </div>`;
}

/** How much of all that was published is still held. */
function Kept({ of }) {
  const all = (of.survivors ?? 0) + (of.collected ?? 0);
  if (!known(of.survivors) || !known(of.collected) || !all) return html`<span class="unknown">${UNKNOWN}</span>`;
  const percent = Math.round((100 * of.survivors) / all);
  return html`<span class="share"
    ><meter min="0" max="100" value=${percent} aria-label="kept"></meter>${percent} %</span
  >`;
}

function Trouble({ of }) {
  const refused = of.refused_count
    ? `${plural(of.refused_count, "update")} refused: ${(of.refused ?? []).map(inline).join("; ")}`
    : "";
  return html`<span class="bad">${of.problem ?? refused}</span>`;
}
