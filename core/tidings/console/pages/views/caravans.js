/** Caravans: the readers of each log, drawn where they are along it. */
import { Empty, Partial, Problem } from "../components/notice.js";
import { Owner } from "../components/owner.js";
import { Panel } from "../components/panel.js";
import { bytes, count, inline, known, plain, plural, position, rate } from "../format.js";
import { html, useState } from "../html.js";
import { useQuery } from "../query.js";
import { shardLanes, wholeLane } from "../lanes.js";

const SHARDS_SHOWN = 32;
const RIDERS_SHOWN = 12;

export function Caravans() {
  const { data, error } = useQuery("caravans", {}, { every: 2000 });
  return html`<div class="page">
    <header class="page-head"><h1>Caravans</h1></header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    ${(data?.items ?? []).map((reading) => html`<${Reading} key=${`${reading.stream} ${reading.publisher}`} reading=${reading} />`)}
    ${data?.items.length === 0 && html`<${Empty}>Nobody reads a log.<//>`}
  </div>`;
}

function Reading({ reading }) {
  const [all, setAll] = useState(false);
  const caravans = reading.caravans ?? [];
  const lanes = caravans.some((one) => one.position) ? shardLanes(reading.head ?? {}, caravans) : wholeLane(caravans);
  const shown = all ? lanes : lanes.slice(0, SHARDS_SHOWN);
  return html`<${Panel}
    title=${reading.stream}
    aside=${html`<${Owner} name=${reading.publisher} /><span>${bytes(reading.bytes_read)} read</span><span>${bytes(reading.bytes_sent)} sent</span>`}
  >
    ${reading.trouble && html`<div class="notice" data-kind="warning">${reading.trouble}</div>`}
    <ul class="caravans">
      ${caravans.map(
        (one, index) =>
          html`<li key=${one.id}>
            <span class="wagon" data-wagon=${index % 6} data-lead=${one.lead ? "" : null}></span>
            <strong>${one.lead ? "lead caravan" : `caravan ${plain(one.id)}`}</strong>
            <${Riders} flows=${one.flows} number=${one.flow_count} />
            ${known(one.behind) && html`<em>${one.behind ? `${count(one.behind)} behind` : "at the head"}</em>`}
            ${known(one.rate) && html`<em>${rate(one.rate)}</em>`}
          </li>`,
      )}
    </ul>
    <ol class="lanes" aria-label=${`positions along the log of ${reading.stream}`}>
      ${shown.map(
        ({ shard, head, stops }) =>
          html`<li key=${shard}>
            <span class="shard">${shard ?? "log"}</span>
            <span class="track">
              ${stops.map(
                ({ index, lead, at, lag, share }) =>
                  html`<span
                    class="wagon"
                    data-wagon=${index % 6}
                    data-lead=${lead ? "" : null}
                    style=${{ left: `${share * 100}%` }}
                    title=${`${lead ? "lead caravan" : `caravan ${caravans[index].id}`}${known(at) ? ` at ${position(at)} of ${position(head)}` : `, ${plural(lag, "update")} behind`}`}
                  ></span>`,
              )}
            </span>
            <span class="head">${shard === null ? "head" : position(head)}</span>
          </li>`,
      )}
    </ol>
    ${lanes.length > SHARDS_SHOWN && html`<button type="button" class="quiet" onClick=${() => setAll(!all)}>${all ? "fewer" : `all ${lanes.length} shards`}</button>`}
  <//>`;
}

/** Whose flows ride on it, or how many, if that is all that is told. */
function Riders({ flows, number }) {
  if (!Array.isArray(flows))
    return html`<span class="riders">${known(flows) ? plural(flows, "flow") : plain(null)}</span>`;
  const names = [
    ...new Set(flows.map((flow) => (typeof flow === "string" ? flow.split("/")[0] : plain(flow?.application)))),
  ];
  const shown = names.slice(0, RIDERS_SHOWN).join(", ") + (names.length > RIDERS_SHOWN ? "…" : "");
  return html`<span class="riders" title=${flows.map(inline).join("\n")}
    >${plural(number ?? flows.length, "flow")}: ${shown}</span
  >`;
}
