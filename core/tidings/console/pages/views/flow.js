/** One flow: where it stands, how it came there, and what an operator can do. */
import { place } from "../api.js";
import { Actions, ONE_FLOW_ACTIONS } from "../components/actions.js";
import { Chart } from "../components/chart.js";
import { Facts } from "../components/facts.js";
import { Problem } from "../components/notice.js";
import { Owner } from "../components/owner.js";
import { Panel } from "../components/panel.js";
import { State } from "../components/state.js";
import { Table } from "../components/table.js";
import { Time } from "../components/time.js";
import { count, duration, plain, plural, position } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href } from "../router.js";

const REFRESH_MS = 2000;
const HISTORY = [
  { key: "time", title: "When", width: 8, cell: (one) => html`<${Time} at=${one.time} />` },
  { key: "kind", title: "What", width: 8, cell: (one) => plain(one.kind) },
  { key: "epoch", title: "Epoch", width: 5, align: "end", cell: (one) => plain(one.epoch) },
  { key: "publisher", title: "Publisher", width: 15, cell: (one) => html`<${Owner} name=${one.publisher} />` },
  {
    key: "subscriber",
    title: "Subscriber",
    width: 11,
    rank: 2,
    cell: (one) => html`<span class="cut" title=${one.subscriber}>${plain(one.subscriber)}</span>`,
  },
  { key: "reason", title: "Why", wrap: true, cell: (one) => plain(one.reason) },
];

export function FlowPage({ names }) {
  const { data, error, reload } = useQuery(`flows/${place(...names)}`, {}, { every: REFRESH_MS });
  const flow = data ?? {};
  const name = names.join("/");
  const [application, stream, shard] = names;
  return html`<div class="page">
    <header class="page-head">
      <h1><a href=${href(["flows"])}>Flows</a> <span class="mono">${name}</span></h1>
      ${data && html`<${State} state=${flow.state} />`}
      <span class="spring"></span>
      ${data && html`<${Actions} actions=${ONE_FLOW_ACTIONS} flows=${[name]} onDone=${reload} />`}
    </header>
    <${Problem} error=${error} />
    ${flow.reason && html`<div class="notice" data-kind=${flow.state === "failed" ? "error" : "warning"}>${flow.reason}</div>`}
    <div class="split">
      <${Panel} title="Where it stands">
        <${Facts}
          of=${[
            ["Owner", html`<${Owner} name=${flow.owner} />`],
            ["On", flow.host ? `${flow.host}, pid ${plain(flow.pid)}` : plain(null)],
            ["Epoch", plain(flow.epoch)],
            ["Pinned to", html`<${Owner} name=${flow.pinned_to} />`],
            ["Subscriber", plain(flow.subscriber)],
            ["Datamarker", position(flow.datamarker)],
            ["Head", position(flow.head)],
            ["Lag", plural(flow.lag, "update")],
            ["Age of the oldest", duration(flow.lag_seconds)],
            ["Acknowledged", html`<${Time} at=${flow.acknowledged} />`],
            ["Application", html`<a href=${href(["flows"], { application })}>${application}</a>`],
            ["Stream", html`<a href=${href(["streams", stream], { shard })}>${stream}</a>`],
          ]}
        />
      <//>
      <${Panel} title="Lag over time">
        <${Chart}
          title="Updates"
          times=${flow.lag_history?.times}
          values=${flow.lag_history?.lag}
          format=${count}
          sync="flow"
        />
        <${Chart}
          title="Age of the oldest"
          times=${flow.lag_history?.times}
          values=${flow.lag_history?.lag_seconds}
          format=${duration}
          line="--line-2"
          sync="flow"
        />
      <//>
    </div>
    <${Panel} title="Owners so far">
      <${Table}
        columns=${HISTORY}
        rows=${data && (flow.history ?? [])}
        rowKey=${(one) => `${one.time} ${one.kind} ${one.epoch}`}
        caption="owners so far"
        skeleton=${5}
      />
    <//>
  </div>`;
}
