/** All flows, a page at a time. What is asked for is in the address, so that a view can be shared. */
import { get } from "../api.js";
import { Actions, FLOW_ACTIONS } from "../components/actions.js";
import { FlowTable } from "../components/flow-table.js";
import { Paged, narrow, usePages } from "../components/paged.js";
import { count, plural } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { REFRESH_MS } from "../query.js";
import { useSelection } from "../selection.js";
import { useOperator } from "../session.js";
import { STATES } from "../states.js";

const NAMED_LIMIT = 1000; // flows that an action can name one by one
const FILTERS = ["application", "stream", "publisher", "subscriber"];

export function Flows({ query }) {
  const asked = { ...chosenOf(query), sort: query.sort ?? "name" };
  const operator = useOperator();
  const selection = useSelection((flow) => flow.flow ?? flow);
  // While some are chosen by their lag, the others do not change places under the pointer.
  const every = asked.sort !== "name" && selection.keys.size ? 0 : REFRESH_MS;
  const list = usePages("flows", query, asked, { every });
  useEffect(() => selection.clear(), [JSON.stringify(chosenOf(query))]);

  const filters = html`<${StateFilter} value=${query.state} onValue=${(state) => narrow({ state })} />
    ${FILTERS.filter((name) => query[name]).map((name) => html`<${Chip} name=${name} value=${query[name]} onClear=${() => narrow({ [name]: undefined })} />`)}`;
  return html`<${Paged}
    title="Flows"
    search="Search flows"
    query=${query}
    list=${list}
    filters=${filters}
    empty="No flow is like that."
  >
    <${FlowTable}
      flows=${list.data?.items}
      caption="flows"
      walk
      stale=${list.stale}
      skeleton=${25}
      selection=${operator ? selection : null}
      sorted=${asked.sort}
      onSort=${(sort) => narrow({ sort: sort === "name" ? undefined : sort })}
    />
    ${operator && selection.keys.size > 0 && html`<${Bar} selection=${selection} total=${list.data?.total} query=${query} reload=${list.reload} />`}
  <//>`;
}

function chosenOf(query) {
  return Object.fromEntries(
    ["q", "state", ...FILTERS].filter((name) => query[name]).map((name) => [name, query[name]]),
  );
}

function StateFilter({ value = "", onValue }) {
  const chosen = new Set(value.split(",").filter(Boolean));
  const toggle = (state) => {
    const next = new Set(chosen);
    if (!next.delete(state)) next.add(state);
    onValue([...next].join(",") || undefined);
  };
  return html`<div class="toggles" role="group" aria-label="states">
    ${Object.entries(STATES).map(
      ([state, { meaning }]) =>
        html`<button
          type="button"
          key=${state}
          data-state=${state}
          title=${meaning}
          aria-pressed=${chosen.has(state)}
          onClick=${() => toggle(state)}
        >
          ${state}
        </button>`,
    )}
  </div>`;
}

function Chip({ name, value, onClear }) {
  return html`<span class="chip"
    ><em>${name}</em><span class="cut">${value}</span>
    <button type="button" class="quiet" aria-label=${`any ${name}`} onClick=${onClear}>✕</button>
  </span>`;
}

/** What is selected, and what can be done with it. */
function Bar({ selection, total, query, reload }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [whole, setWhole] = useState(false);
  const named = selection.keys.size;
  const filters = Object.keys(chosenOf(query));
  const { application, stream } = query;
  // All flows of an application need not be named, however many they are.
  const nameless = application && filters.every((name) => name === "application" || name === "stream");
  useEffect(() => setWhole(false), [selection.keys]);

  async function takeAll() {
    if (nameless) {
      setWhole(true);
      return;
    }
    setBusy(true);
    setError(null);
    try {
      const { items } = await get("flows", { ...chosenOf(query), size: NAMED_LIMIT });
      selection.setAll(items, true);
    } catch (refusal) {
      setError(refusal);
    }
    setBusy(false);
  }

  const chosen = whole ? total : named;

  return html`<div class="action-bar" role="region" aria-label="selected flows">
    <strong>${plural(chosen, "flow")} selected</strong>
    ${
      total > chosen &&
      (nameless || total <= NAMED_LIMIT) &&
      html`<button type="button" class="quiet" disabled=${busy} onClick=${takeAll}>select all ${count(total)}</button>`
    }
    <button type="button" class="quiet" onClick=${() => selection.clear()}>none</button>
    ${error && html`<span class="refusal" role="alert">${error.message}</span>`}
    <span class="spring"></span>
    <${Actions}
      actions=${FLOW_ACTIONS}
      flows=${whole ? [] : [...selection.keys]}
      number=${chosen}
      fixed=${whole ? { application, ...(stream ? { stream } : {}) } : {}}
      onDone=${() => {
        selection.clear();
        reload();
      }}
    />
  </div>`;
}
