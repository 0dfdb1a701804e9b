/** The updates of a stream, by shard and position, narrowed by a filter; one of them opened shows its payload. */
import { place } from "../api.js";
import { bytes, plain, position } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { writeJson } from "../json.js";
import { useQuery } from "../query.js";
import { setQuery } from "../router.js";
import { onRow } from "../row-click.js";
import { Empty, Partial, Problem } from "./notice.js";
import { Panel } from "./panel.js";
import { Search } from "./search.js";
import { Time } from "./time.js";
import { UpdateContent } from "./update.js";

const LIMIT = 50;

export function Records({ stream, query, shards }) {
  const asked = { shard: query.shard, after: query.after, filter: query.filter, limit: LIMIT };
  const { data, error, stale, reload } = useQuery(`streams/${place(stream)}/records`, asked, { every: 0 });
  const [open, setOpen] = useState(null);
  const [behind, setBehind] = useState([]);
  useEffect(() => setBehind([]), [query.shard, query.filter]);

  const next = data?.next === null || data?.next === undefined ? null : writeJson(data.next);

  function from(after) {
    setBehind([]);
    setQuery({ after });
  }

  function further() {
    setBehind([...behind, query.after]);
    setQuery({ after: next });
  }

  function back() {
    setBehind(behind.slice(0, -1));
    setQuery({ after: behind.at(-1) });
  }

  return html`<${Panel} title="Updates" class="records">
    <div class="page-head">
      <label class="inline"
        >Shard
        <input
          class="shard"
          inputmode="numeric"
          placeholder="all"
          value=${query.shard ?? ""}
          onChange=${(event) => setQuery({ shard: shardOf(event.target.value, shards), after: undefined })}
        />
      </label>
      <${Search}
        label="Filter, as in  region = eu and version > 7"
        mono
        value=${query.filter}
        onValue=${(filter) => setQuery({ filter, after: undefined })}
      />
      <span class="spring"></span>
      <nav class="pager" aria-label="positions">
        <button type="button" aria-pressed=${query.after === "earliest"} onClick=${() => from("earliest")}>
          Oldest
        </button>
        <button type="button" disabled=${!behind.length} onClick=${back} aria-label="back">‹</button>
        <button type="button" disabled=${!next} onClick=${further} aria-label="further">›</button>
        <button type="button" aria-pressed=${!query.after} onClick=${() => (query.after ? from(undefined) : reload())}>
          Newest
        </button>
      </nav>
    </div>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    <div class="table-wrap" data-stale=${stale ? "" : null}>
      <table class="updates">
        <caption class="hidden-text">
          updates
        </caption>
        <thead>
          <tr>
            <th scope="col" data-align="end" class="w5">Shard</th>
            <th scope="col" data-align="end" class="w7">Position</th>
            <th scope="col">Object</th>
            <th scope="col" data-align="end" class="w7">Version</th>
            <th scope="col" class="w6" data-rank="2">Kind</th>
            <th scope="col" class="w8" data-rank="3">Source</th>
            <th scope="col" data-align="end" class="w6" data-rank="2">Size</th>
            <th scope="col" data-align="end" class="w7">When</th>
          </tr>
        </thead>
        <tbody>
          ${(data?.items ?? []).map((update) => {
            const key = `${update.shard}/${update.seq}/${update.index}`;
            return html`<${Update}
              key=${key}
              update=${update}
              open=${open === key}
              toggle=${() => setOpen(open === key ? null : key)}
            />`;
          })}
        </tbody>
      </table>
    </div>
    ${data?.items.length === 0 && html`<${Empty}>No update here${query.filter ? " passes the filter" : ""}.<//>`}
  <//>`;
}

function Update({ update, open, toggle }) {
  return html`
    <tr data-opens onClick=${onRow(toggle)}>
      <td data-align="end">${plain(update.shard)}</td>
      <td data-align="end">${position(update.index ? [update.seq, update.index] : update.seq)}</td>
      <th scope="row">
        <button type="button" class="link cut" aria-expanded=${open} title=${update.object} onClick=${toggle}>
          ${update.object}
        </button>
      </th>
      <td data-align="end">${plain(update.version)}</td>
      <td data-rank="2">${plain(update.kind)}</td>
      <td data-rank="3"><span class="cut">${plain(update.source)}</span></td>
      <td data-align="end" data-rank="2">${bytes(update.size)}</td>
      <td data-align="end"><${Time} at=${update.time} /></td>
    </tr>
    ${open && html`<${Opened} update=${update} />`}
  `;
}

/** A row as wide as the columns that are shown: one that spans more would take room from them. */
function Opened({ update }) {
  const row = useRef(null);
  const [columns, setColumns] = useState(1);
  useLayoutEffect(() => {
    const table = row.current.closest("table");
    const measure = () =>
      setColumns([...table.tHead.rows[0].cells].filter((cell) => cell.getClientRects().length).length);
    const resized = new ResizeObserver(measure);
    resized.observe(table);
    measure();
    return () => resized.disconnect();
  }, []);
  return html`<tr class="opened" ref=${row}>
    <td colspan=${columns}><${UpdateContent} update=${update} /></td>
  </tr>`;
}

function shardOf(text, shards) {
  const number = Number.parseInt(text, 10);
  return Number.isInteger(number) && number >= 0 && number < (shards ?? Infinity) ? number : undefined;
}
