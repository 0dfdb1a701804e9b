/** The applications: what they read, how they stand. */
import { Empty, Partial, Problem } from "../components/notice.js";
import { Search } from "../components/search.js";
import { Sign } from "../components/state.js";
import { Table } from "../components/table.js";
import { count, duration, plain } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href, setQuery } from "../router.js";

const link = (one) => href(["flows"], { application: one.name });
const COLUMNS = [
  {
    key: "name",
    title: "Application",
    width: 13,
    cell: (one) => html`<a class="cut" href=${link(one)} title=${one.name}>${one.name}</a>`,
  },
  { key: "flows", title: "Flows", width: 5, align: "end", cell: (one) => count(one.flows) },
  {
    key: "states",
    title: "States",
    width: 13,
    wrap: true,
    cell: (one) => html`<${Spread} application=${one.name} states=${one.states} />`,
  },
  { key: "lag", title: "Lag", width: 6, align: "end", cell: (one) => count(one.lag) },
  { key: "lag_seconds", title: "Age", width: 6, align: "end", cell: (one) => duration(one.lag_seconds) },
  {
    key: "subscribers",
    title: "Subscribers",
    width: 6.5,
    align: "end",
    cell: (one) => html`<a href=${href(["members"], { application: one.name })}>${count(one.subscribers)}</a>`,
  },
  {
    key: "streams",
    title: "Streams",
    wrap: true,
    cell: (one) => (one.streams ?? []).map((name) => html`<a class="tag" href=${href(["streams", name])}>${name}</a>`),
  },
  { key: "filter", title: "Filter", rank: 2, wrap: true, cell: (one) => html`<code>${plain(one.filter)}</code>` },
  { key: "mode", title: "Delivery", width: 7, rank: 3, cell: (one) => plain(one.mode) },
  {
    key: "start",
    title: "Start",
    width: 7,
    rank: 3,
    cell: (one) => html`<span class="cut">${plain(one.start)}</span>`,
  },
  {
    key: "balance",
    title: "Balance",
    width: 7,
    rank: 3,
    cell: (one) => html`<span class="cut">${plain(one.balance)}</span>`,
  },
  {
    key: "on_failure",
    title: "On failure",
    width: 7,
    rank: 3,
    cell: (one) => html`<span class="cut" title=${one.on_failure}>${plain(one.on_failure)}</span>`,
  },
];

export function Applications({ query }) {
  const { data, error } = useQuery("applications");
  const wanted = query.q ?? "";
  const shown = data?.items.filter(({ name }) => name.includes(wanted));
  return html`<div class="page">
    <header class="page-head">
      <h1>Applications</h1>
      <${Search} label="Search applications" value=${wanted} onValue=${(q) => setQuery({ q })} />
      <span class="spring"></span>
      <span class="numbers">${shown && count(shown.length)}</span>
    </header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    <${Table} columns=${COLUMNS} rows=${shown} rowKey=${(one) => one.name} caption="applications" open=${link} walk />
    ${shown?.length === 0 && html`<${Empty}>No application is like that.<//>`}
  </div>`;
}

function Spread({ application, states }) {
  return Object.entries(states ?? {})
    .filter(([, number]) => number)
    .map(
      ([state, number]) =>
        html`<a
          key=${state}
          class="state"
          data-state=${state}
          href=${href(["flows"], { application, state })}
          title=${state}
        >
          <${Sign} state=${state} />${count(number)}
        </a>`,
    );
}
