/** The ownership map as data: rows of cells, each with an owner and a state, and what has just changed. */
import { meet } from "../owners.js";

export const NOBODY = -1;

/** `map` is what /api/map answers. Owners are kept as indices into `names`, which only grows. */
export function modelOf(map) {
  const model = {
    names: [],
    state: new Map(),
    left: new Map(),
    rows: [],
    cells: 0,
    layout: map.layout,
    version: map.version,
  };
  const owner = renumbering(model, map.publishers);
  model.rows = map.rows.map((row) => ({
    application: row.application,
    stream: row.stream,
    owners: Int16Array.from(row.owners, owner),
    states: [...row.states],
  }));
  model.cells = model.rows.reduce((sum, row) => sum + row.owners.length, 0);
  return model;
}

/**
 * Take in what a `map` event tells. Gives the cells that changed, as [row, shard, owner before, state before], or null
 * if the map has to be asked for: its rows are others now, or something between was missed.
 */
export function applyChanges(model, event) {
  if (event.layout !== model.layout || event.since > model.version) return null;
  const owner = renumbering(model, event.publishers);
  const changed = [];
  for (const [row, shard, index, letter] of event.changes) {
    const { owners, states } = model.rows[row];
    const next = owner(index);
    if (owners[shard] === next && states[shard] === letter) continue;
    changed.push([row, shard, owners[shard], states[shard]]);
    owners[shard] = next;
    states[shard] = letter;
  }
  model.version = Math.max(model.version, event.version);
  return changed;
}

/** How many cells each publisher owns, those with none among them, and how many are in each state. */
export function tally(model) {
  const owned = new Array(model.names.length).fill(0);
  const letters = {};
  let nobody = 0;
  for (const { owners, states } of model.rows) {
    for (let shard = 0; shard < owners.length; shard++) {
      if (owners[shard] === NOBODY) nobody += 1;
      else owned[owners[shard]] += 1;
      letters[states[shard]] = (letters[states[shard]] ?? 0) + 1;
    }
  }
  return { owned, nobody, letters };
}

function renumbering(model, publishers) {
  meet(publishers);
  const state = new Map(publishers.map(({ name, state: now }) => [name, now]));
  for (const [name, before] of model.state) {
    if (before !== "gone" && (state.get(name) ?? "gone") === "gone") model.left.set(name, Date.now());
  }
  model.state = state;
  const ours = publishers.map(({ name }) => {
    const at = model.names.indexOf(name);
    return at < 0 ? model.names.push(name) - 1 : at;
  });
  return (index) => ours[index] ?? NOBODY;
}
