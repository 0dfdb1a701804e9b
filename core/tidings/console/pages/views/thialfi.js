/** The Thialfi services: clients, registrations, gateways, delay. */
import { Facts } from "../components/facts.js";
import { Empty, Partial, Problem } from "../components/notice.js";
import { Panel } from "../components/panel.js";
import { Table } from "../components/table.js";
import { count, duration, inline, plain } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href } from "../router.js";

const UNNAMED = "Stream";
const GATEWAYS = [
  {
    key: "name",
    title: "Gateway",
    width: 14,
    cell: (one) => html`<span class="cut" title=${one.name}>${plain(one.name)}</span>`,
  },
  { key: "clients", title: "Clients", width: 6, align: "end", cell: (one) => count(one.clients) },
  {
    key: "delay",
    title: "Delay, 99 of 100",
    width: 9,
    align: "end",
    rank: 1,
    cell: (one) => duration(one.delay_seconds?.p99),
  },
  { key: "pid", title: "Pid", width: 5.5, align: "end", rank: 2, cell: (one) => plain(one.pid) },
  { key: "address", title: "Address", cell: (one) => html`<span class="cut">${plain(one.address)}</span>` },
];

export function Thialfi() {
  const { data, error } = useQuery("thialfi");
  return html`<div class="page">
    <header class="page-head"><h1>Thialfi</h1></header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    ${(data?.items ?? []).map((service) => html`<${Service} key=${service.service} service=${service} />`)}
    ${data?.items.length === 0 && html`<${Empty}>No service is there. <code>tidings thialfi create</code> makes one.<//>`}
  </div>`;
}

function Service({ service }) {
  const streams = Array.isArray(service.streams)
    ? service.streams.map((name) => [UNNAMED, name])
    : Object.entries(service.streams ?? {});
  return html`<${Panel} title=${service.service}>
    ${service.problem && html`<div class="notice" data-kind="error">${service.problem}</div>`}
    <div class="split">
      <${Facts}
        of=${[
          ["Clients", count(service.clients)],
          ["Registrations", count(service.registrations)],
          ["Delay, half of all", duration(service.delay_seconds?.p50)],
          ["Delay, 99 of 100", duration(service.delay_seconds?.p99)],
          [
            "Pipeline",
            service.pipeline
              ? `${service.pipeline}, ${service.running ? `runs on ${plain(service.host)}, pid ${plain(service.pid)}` : "does not run"}`
              : plain(null),
          ],
          ...streams.map(([role, name]) => [
            role,
            typeof name === "string" ? html`<a href=${href(["streams", name])}>${name}</a>` : inline(name),
          ]),
        ]}
      />
      <${Table} columns=${GATEWAYS} rows=${service.gateways ?? []} rowKey=${(one) => one.name} caption="gateways" />
    </div>
  <//>`;
}
