/** Flows as a table; who shows them chooses the columns. */
import { UNKNOWN, count, duration, plain, position } from "../format.js";
import { html } from "../html.js";
import { href } from "../router.js";
import { Owner } from "./owner.js";
import { State } from "./state.js";
import { Table } from "./table.js";
import { Time } from "./time.js";

function flowLink(flow) {
  return href(["flows", flow.application, flow.stream, flow.shard]);
}

const COLUMNS = {
  flow: {
    title: "Flow",
    sort: "name",
    order: "ascending",
    cell: (flow) =>
      html`<a href=${flowLink(flow)} title=${flow.flow} class="path">
        <span class="cut">${flow.application}/${flow.stream}</span><span>/${flow.shard}</span>
      </a>`,
  },
  state: { title: "State", width: 7.5, cell: (flow) => html`<${State} state=${flow.state} reason=${flow.reason} />` },
  sign: {
    title: html`<span class="hidden-text">State</span>`,
    width: 2,
    cell: (flow) => html`<${State} state=${flow.state} reason=${flow.reason} short />`,
  },
  lag: {
    title: "Lag",
    width: 6.2,
    align: "end",
    sort: "lag",
    hint: "updates after the datamarker",
    cell: (flow) => count(flow.lag),
  },
  lag_seconds: {
    title: "Age",
    width: 6,
    rank: 1,
    align: "end",
    sort: "lag-seconds",
    hint: "of the oldest update that is not acknowledged",
    cell: (flow) => duration(flow.lag_seconds),
  },
  owner: {
    title: "Owner",
    width: 14,
    rank: 1,
    cell: (flow) => html`<${Owner} name=${flow.owner} /><${Pin} flow=${flow} />`,
  },
  epoch: { title: "Epoch", width: 4.5, align: "end", rank: 3, cell: (flow) => plain(flow.epoch) },
  subscriber: {
    title: "Subscriber",
    width: 10,
    rank: 2,
    cell: (flow) =>
      flow.subscriber
        ? html`<a class="cut" href=${href(["flows"], { subscriber: flow.subscriber })} title=${flow.subscriber}
            >${flow.subscriber}</a
          >`
        : html`<span class="unknown">${UNKNOWN}</span>`,
  },
  datamarker: { title: "Datamarker", width: 7.5, align: "end", rank: 3, cell: (flow) => position(flow.datamarker) },
  head: { title: "Head", width: 7.5, align: "end", rank: 3, cell: (flow) => position(flow.head) },
  acknowledged: {
    title: "Acknowledged",
    width: 8,
    align: "end",
    rank: 3,
    cell: (flow) => html`<${Time} at=${flow.acknowledged} />`,
  },
};

const ALL_COLUMNS = Object.keys(COLUMNS).filter((key) => key !== "sign");

export function FlowTable({ flows, columns = ALL_COLUMNS, ...rest }) {
  const shown = columns.map((key) => ({ key, ...COLUMNS[key] }));
  return html`<${Table} columns=${shown} rows=${flows} rowKey=${(flow) => flow.flow} open=${flowLink} ...${rest} />`;
}

function Pin({ flow }) {
  if (!flow.pinned_to) return null;
  return html`<span class="pin" title=${`pinned to ${flow.pinned_to}`} aria-label=${`pinned to ${flow.pinned_to}`}
    >pinned</span
  >`;
}
