/** The pipelines: how their queries go. */
import { Empty, Partial, Problem } from "../components/notice.js";
import { State } from "../components/state.js";
import { Table } from "../components/table.js";
import { Time } from "../components/time.js";
import { count, plain, rate } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href } from "../router.js";

const streamTag = (name) => html`<a class="tag" key=${name} href=${href(["streams", name])}>${name}</a>`;
const COLUMNS = [
  {
    key: "name",
    title: "Pipeline",
    width: 12,
    cell: (one) => html`<span class="cut" title=${one.name}>${one.name}</span>`,
  },
  { key: "stage", title: "Stage", width: 7, cell: (one) => plain(one.stage) },
  { key: "state", title: "State", width: 7.5, cell: (one) => html`<${State} state=${one.state} />` },
  {
    key: "streams",
    title: "From → to",
    wrap: true,
    cell: (one) => html`${(one.inputs ?? []).map(streamTag)} → ${one.output ? streamTag(one.output) : plain(null)}`,
  },
  { key: "batch", title: "Batch", width: 5.5, align: "end", cell: (one) => plain(one.batch) },
  { key: "in", title: "Rate", width: 6.5, align: "end", cell: (one) => rate(one.input_rows_per_second) },
  { key: "read", title: "Updates in", width: 7, align: "end", rank: 2, cell: (one) => count(one.updates_in) },
  { key: "written", title: "Updates out", width: 7, align: "end", rank: 2, cell: (one) => count(one.updates_out) },
  {
    key: "last",
    title: "Progress",
    width: 6.5,
    align: "end",
    cell: (one) => html`<${Time} at=${one.last_progress} />`,
  },
  { key: "host", title: "Host", width: 8, rank: 3, cell: (one) => html`<span class="cut">${plain(one.host)}</span>` },
  { key: "pid", title: "Pid", width: 5.5, align: "end", rank: 3, cell: (one) => plain(one.pid) },
  { key: "problem", title: "Problem", wrap: true, cell: (one) => html`<span class="bad">${one.problem ?? ""}</span>` },
];

export function Pipelines() {
  const { data, error } = useQuery("pipelines");
  return html`<div class="page">
    <header class="page-head"><h1>Pipelines</h1></header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    <${Table}
      columns=${COLUMNS}
      rows=${data?.items}
      rowKey=${(one) => one.name}
      caption="pipelines"
      skeleton=${4}
      walk
    />
    ${data?.items.length === 0 && html`<${Empty}>No pipeline runs. <code>tidings run</code> runs those of a <code>tidings.yml</code>.<//>`}
  </div>`;
}
