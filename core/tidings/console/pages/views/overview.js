/** One look: is it well, how much goes through, what lags, and who owns what. */
import { Chart } from "../components/chart.js";
import { FlowTable } from "../components/flow-table.js";
import { OwnershipMap } from "../components/map.js";
import { Empty, Problem } from "../components/notice.js";
import { Panel } from "../components/panel.js";
import { bytes, count, duration, measure } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { listen } from "../live.js";
import { useQuery } from "../query.js";
import { href } from "../router.js";

const KEPT_POINTS = 900;
const WHOLE_MS = 60000; // between two looks at all that the server has kept; events tell the rest
const COUNTS = [
  ["flows", "Flows", "flows"],
  ["publishers", "Publishers", "members"],
  ["subscribers", "Subscribers", "members"],
  ["applications", "Applications", "applications"],
  ["streams", "Streams", "streams"],
  ["pipelines", "Pipelines", "pipelines"],
];
const HEALTH = { ok: "All is well", warning: "Something needs a look", critical: "Something is wrong" };

export function Overview() {
  const { data, error, at, reload } = useQuery("overview", {}, { every: WHOLE_MS });
  const [live, setLive] = useState(null);
  const history = useHistory(data?.history, at, live?.point);
  useEffect(() => listen("overview", setLive), []);
  useEffect(() => listen("back", reload), [reload]); // events do not tell that there is a gap
  const shown = live ?? data;

  return html`<div class="overview">
    <h1 class="hidden-text">Overview</h1>
    <${Problem} error=${live ? null : error} />
    <${Health} of=${shown} />
    <${OwnershipMap} />
    <div class="beside">
      <${Panel} title="Through the cluster" aside=${shown?.rates && `${bytes(shown.rates.bytes_per_second)}/s`}>
        <${Chart}
          title="Updates a second"
          times=${history.times}
          values=${history.updates_per_second}
          format=${measure}
          sync="overview"
        />
        <${Chart}
          title="Worst lag"
          times=${history.times}
          values=${history.worst_lag_seconds}
          format=${duration}
          line="--line-2"
          sync="overview"
        />
      <//>
      <${Panel} title="Worst lag" aside=${html`<a href=${href(["flows"], { sort: "lag-seconds" })}>all flows</a>`}>
        <${FlowTable}
          flows=${shown?.worst?.slice(0, 10)}
          columns=${["flow", "sign", "lag", "lag_seconds"]}
          caption="flows with the worst lag"
          skeleton=${10}
        />
        ${shown?.worst?.length === 0 && html`<${Empty}>Nothing lags.<//>`}
      <//>
    </div>
  </div>`;
}

function Health({ of }) {
  const health = of?.health;
  return html`<section class="health" data-health=${health} aria-label="health">
    <div class="verdict">
      <strong>${health ? (HEALTH[health] ?? health) : " "}</strong>
      <ul>
        ${[...new Set([...(of?.reasons ?? []), ...(of?.problems ?? [])])].map((reason) => html`<li title=${reason}>${reason}</li>`)}
      </ul>
    </div>
    <dl class="tiles">
      ${COUNTS.map(
        ([key, title, page]) =>
          html`<div>
            <dt><a href=${href([page])}>${title}</a></dt>
            <dd>${count(of?.counts?.[key])}</dd>
          </div>`,
      )}
    </dl>
  </section>`;
}

/** The server's ring, with the points that events have brought since. */
function useHistory(ring, at, point) {
  const [history, setHistory] = useState({});
  useEffect(() => ring && setHistory(ring), [at]);
  useEffect(() => {
    if (!point) return;
    setHistory((known) => {
      const last = known.times?.at(-1);
      if (!known.times || (last !== undefined && point[0] <= last)) return known;
      const add = (values, value) => [...values.slice(-KEPT_POINTS + 1), value];
      return {
        times: add(known.times, point[0]),
        updates_per_second: add(known.updates_per_second, point[1]),
        worst_lag_seconds: add(known.worst_lag_seconds, point[2]),
        lag: add(known.lag ?? [], point[3]),
      };
    });
  }, [point]);
  return history;
}
