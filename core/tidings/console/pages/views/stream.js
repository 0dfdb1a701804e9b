/** One stream: its definition, its shards, its rate, and its updates. */
import { place } from "../api.js";
import { Chart } from "../components/chart.js";
import { Facts } from "../components/facts.js";
import { Problem } from "../components/notice.js";
import { Panel } from "../components/panel.js";
import { Records } from "../components/records.js";
import { Table } from "../components/table.js";
import { Time } from "../components/time.js";
import { count, inline, measure, position } from "../format.js";
import { html } from "../html.js";
import { useQuery } from "../query.js";
import { href, setQuery } from "../router.js";

const OTHERWISE_SHOWN = new Set([
  "name",
  "shards",
  "rate_history",
  "readers",
  "partial",
  "problems",
  "problem",
  "as_of",
  "shard_count",
  "id",
  "updates_per_second",
]);

export function StreamPage({ names, query }) {
  const [name] = names;
  const { data, error } = useQuery(`streams/${place(name)}`);
  const shards = Array.isArray(data?.shards) ? data.shards : undefined;
  const columns = [
    {
      key: "shard",
      title: "Shard",
      width: 5,
      align: "end",
      cell: (one) =>
        html`<button
          type="button"
          class="link"
          title="its updates"
          onClick=${() => setQuery({ shard: one.shard, after: undefined })}
        >
          ${one.shard}
        </button>`,
    },
    { key: "oldest", title: "Oldest", align: "end", cell: (one) => position(one.oldest) },
    { key: "newest", title: "Newest", align: "end", cell: (one) => position(one.newest) },
    { key: "updates", title: "Updates", align: "end", cell: (one) => count(one.updates) },
    { key: "last_time", title: "Last", align: "end", cell: (one) => html`<${Time} at=${one.last_time} />` },
  ];
  return html`<div class="page">
    <header class="page-head">
      <h1><a href=${href(["streams"])}>Streams</a> <span class="mono">${name}</span></h1>
      <span class="spring"></span>
      <a href=${href(["flows"], { stream: name })}>its flows</a>
    </header>
    <${Problem} error=${error} />
    ${data?.problem && html`<div class="notice" data-kind="error">${data.problem}</div>`}
    <div class="split">
      <${Panel} title="Definition">
        <${Facts} of=${definition(data)} />
      <//>
      <${Panel} title="Rate">
        <${Chart}
          title="Updates a second"
          times=${data?.rate_history?.times}
          values=${data?.rate_history?.updates_per_second}
          format=${measure}
        />
      <//>
      <${Panel} title="Shards" aside=${shards && count(shards.length)} class="shards">
        <${Table}
          columns=${columns}
          rows=${data && (shards ?? [])}
          rowKey=${(one) => String(one.shard)}
          caption="shards"
        />
      <//>
    </div>
    <${Records} stream=${name} query=${query} shards=${shards?.length} />
  </div>`;
}

function definition(data) {
  if (!data) return [["Log", ""]];
  const rest = Object.entries(data).filter(([key, value]) => !OTHERWISE_SHOWN.has(key) && !empty(value));
  const readers = (data.readers ?? []).map(
    (one) => html`<a class="tag" href=${href(["flows"], { application: one, stream: data.name })}>${one}</a>`,
  );
  return [
    ...rest.map(([key, value]) => [title(key), html`<span class="mono">${inline(value)}</span>`]),
    readers.length > 0 && ["Readers", readers],
  ];
}

function empty(value) {
  return (
    value === null || value === undefined || value === "" || (typeof value === "object" && !Object.keys(value).length)
  );
}

function title(key) {
  return key[0].toUpperCase() + key.slice(1).replaceAll("_", " ");
}
