/** Who takes part: the publishers, which can be drained, and the subscribers. */
import { Actions } from "../components/actions.js";
import { Empty, Partial, Problem } from "../components/notice.js";
import { Owner } from "../components/owner.js";
import { Panel } from "../components/panel.js";
import { Search } from "../components/search.js";
import { State } from "../components/state.js";
import { Table } from "../components/table.js";
import { count, measure, plain } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href, setQuery } from "../router.js";
import { useOperator } from "../session.js";

export function Members({ query }) {
  const publishers = useQuery("publishers");
  const subscribers = useQuery("subscribers", { application: query.application });
  const operator = useOperator();
  const wanted = query.q ?? "";
  const named = (name) => name.includes(wanted);
  return html`<div class="page">
    <header class="page-head">
      <h1>Publishers & subscribers</h1>
      <${Search} label="Search members" value=${wanted} onValue=${(q) => setQuery({ q })} />
      ${
        query.application &&
        html`<span class="chip"
          ><em>application</em><span class="cut">${query.application}</span>
          <button
            type="button"
            class="quiet"
            aria-label="any application"
            onClick=${() => setQuery({ application: undefined })}
          >
            ✕
          </button>
        </span>`
      }
    </header>
    <${Panel} title="Publishers" aside=${publishers.data && count(publishers.data.items.length)}>
      <${Problem} error=${publishers.error} />
      <${Partial} answer=${publishers.data} />
      <${Table}
        columns=${publisherColumns(operator, publishers.reload)}
        rows=${publishers.data?.items.filter(({ name }) => named(name))}
        rowKey=${(one) => one.name}
        caption="publishers"
        skeleton=${3}
        open=${(one) => href(["flows"], { publisher: one.name })}
        walk
      />
      ${publishers.data?.items.length === 0 && html`<${Empty}>No publisher runs. Start one with <code>tidings publisher</code>.<//>`}
    <//>
    <${Panel} title="Subscribers" aside=${subscribers.data && count(subscribers.data.items.length)}>
      <${Problem} error=${subscribers.error} />
      <${Partial} answer=${subscribers.data} />
      <${Table}
        columns=${SUBSCRIBERS}
        rows=${subscribers.data?.items.filter(({ id, application }) => named(id) || named(application))}
        rowKey=${(one) => `${one.application}/${one.id}`}
        caption="subscribers"
        skeleton=${3}
      />
      ${subscribers.data?.items.length === 0 && html`<${Empty}>No subscriber runs.<//>`}
    <//>
  </div>`;
}

function publisherColumns(operator, reload) {
  const columns = [
    {
      key: "name",
      title: "Publisher",
      cell: (one) =>
        html`<${Owner} name=${one.name} />
          <div class="telephone" data-wrap><${Troubles} of=${one.unreadable} /></div>`,
    },
    { key: "state", title: "State", width: 7.5, cell: (one) => html`<${State} state=${one.state} />` },
    { key: "flows", title: "Flows", width: 5, align: "end", rank: 1, cell: (one) => count(one.flows) },
    {
      key: "address",
      title: "Address",
      width: 11,
      rank: 2,
      cell: (one) => html`<span class="cut">${plain(one.address)}</span>`,
    },
    {
      key: "host",
      title: "Host",
      width: 10,
      rank: 3,
      cell: (one) => html`<span class="cut">${plain(one.host)}</span>`,
    },
    { key: "pid", title: "Pid", width: 5.5, align: "end", rank: 3, cell: (one) => plain(one.pid) },
    { key: "replica", title: "Replica", width: 6, rank: 3, cell: (one) => plain(one.replica) },
    { key: "tidings", title: "Release", width: 6, rank: 3, cell: release },
    {
      key: "unreadable",
      title: "Cannot read",
      rank: 1,
      wrap: true,
      cell: (one) => html`<${Troubles} of=${one.unreadable} />`,
    },
  ];
  if (operator)
    columns.push({
      key: "actions",
      title: html`<span class="hidden-text">Actions</span>`,
      width: 7,
      cell: (one) => html`<${Drain} publisher=${one} reload=${reload} />`,
    });
  return columns;
}

const SUBSCRIBERS = [
  {
    key: "id",
    title: "Subscriber",
    width: 18,
    cell: (one) =>
      html`<a class="cut" href=${href(["flows"], { application: one.application, subscriber: one.id })} title=${one.id}
        >${one.id}</a
      >`,
  },
  {
    key: "application",
    title: "Application",
    width: 11,
    cell: (one) =>
      html`<a class="cut" href=${href(["flows"], { application: one.application })}>${one.application}</a>`,
  },
  { key: "state", title: "State", width: 7.5, cell: (one) => html`<${State} state=${one.state} />` },
  { key: "flows", title: "Flows", width: 5, align: "end", cell: (one) => count(one.flows) },
  { key: "load", title: "Load", width: 5, align: "end", rank: 2, cell: (one) => measure(one.load) },
  { key: "weight", title: "Weight", width: 5, align: "end", rank: 3, cell: (one) => plain(one.weight) },
  {
    key: "host",
    title: "Host",
    width: 10,
    rank: 3,
    cell: (one) => html`<span class="cut">${plain(one.host)}</span>`,
  },
  { key: "pid", title: "Pid", width: 5.5, align: "end", rank: 3, cell: (one) => plain(one.pid) },
  { key: "tidings", title: "Release", width: 6, rank: 3, cell: release },
  { key: "unreachable", title: "Cannot reach", wrap: true, cell: (one) => html`<${Troubles} of=${one.unreachable} />` },
];

function release(one) {
  return html`<span class="cut" title=${`protocol ${plain(one.protocol)}`}>${plain(one.tidings)}</span>`;
}

function Drain({ publisher, reload }) {
  const action = publisher.state === "draining" ? "undrain" : "drain";
  if (publisher.state === "gone") return null;
  return html`<${Actions}
    actions=${[{ action, title: action === "drain" ? "Drain" : "Undrain" }]}
    flows=${[]}
    fixed=${{ publisher: publisher.name }}
    onDone=${reload}
  />`;
}

function Troubles({ of }) {
  return Object.entries(of ?? {}).map(
    ([what, why]) => html`<div class="bad" key=${what}><strong>${what}</strong> ${plain(why)}</div>`,
  );
}
