/** The streams of the cluster. */
import { Empty, Partial, Problem } from "../components/notice.js";
import { Search } from "../components/search.js";
import { Table } from "../components/table.js";
import { bytes, count, plain } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href, setQuery } from "../router.js";

const link = (stream) => href(["streams", stream.name]);
const COLUMNS = [
  {
    key: "name",
    title: "Stream",
    width: 14,
    cell: (one) => html`<a class="cut" href=${link(one)} title=${one.name}>${one.name}</a>`,
  },
  { key: "shards", title: "Shards", width: 5, align: "end", cell: (one) => count(one.shards) },
  { key: "updates", title: "Updates", width: 8, align: "end", cell: (one) => count(one.updates) },
  { key: "bytes", title: "Size", width: 6, align: "end", rank: 2, cell: (one) => bytes(one.bytes) },
  { key: "kind", title: "Log", width: 6, rank: 2, cell: (one) => plain(one.kind) },
  {
    key: "log",
    title: "Where",
    rank: 3,
    cell: (one) => html`<code class="cut" title=${one.log}>${plain(one.log)}</code>`,
  },
  {
    key: "readers",
    title: "Readers",
    wrap: true,
    cell: (one) =>
      (one.readers ?? []).map(
        (name) => html`<a class="tag" href=${href(["flows"], { application: name, stream: one.name })}>${name}</a>`,
      ),
  },
  { key: "problem", title: "Problem", wrap: true, cell: (one) => html`<span class="bad">${one.problem ?? ""}</span>` },
];

export function Streams({ query }) {
  const { data, error } = useQuery("streams");
  const wanted = query.q ?? "";
  const shown = data?.items.filter(({ name }) => name.includes(wanted));
  return html`<div class="page">
    <header class="page-head">
      <h1>Streams</h1>
      <${Search} label="Search streams" value=${wanted} onValue=${(q) => setQuery({ q })} />
      <span class="spring"></span>
      <span class="numbers">${shown && count(shown.length)}</span>
    </header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    <${Table} columns=${COLUMNS} rows=${shown} rowKey=${(one) => one.name} caption="streams" open=${link} walk />
    ${shown?.length === 0 && html`<${Empty}>No stream is like that.<//>`}
  </div>`;
}
