/** Who owns what, live: publishers × shards. A failover is seen as it happens. */
import { get } from "../api.js";
import { UNKNOWN, count, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { listen } from "../live.js";
import { MapCanvas } from "../map/canvas.js";
import { NOBODY, applyChanges, modelOf, tally } from "../map/model.js";
import { go, href } from "../router.js";
import { STATES, stateOf } from "../states.js";
import { useStore } from "../store.js";
import { repaint } from "../theme.js";
import { MapSign } from "./map-sign.js";
import { Empty, Problem } from "./notice.js";
import { Swatch } from "./owner.js";
import { Panel } from "./panel.js";
import { State } from "./state.js";

const LEFT_MS = 120000; // for which a publisher that has gone stays in the legend
const WHOLE_MS = 60000; // between two looks at the whole map, in case an event was missed

export function OwnershipMap() {
  const scroller = useRef(null);
  const spacer = useRef(null);
  const canvas = useRef(null);
  const drawing = useRef(null);
  const model = useRef(null);
  const [answer, setAnswer] = useState({});
  const [, drawAgain] = useState(0);
  const [pointed, setPointed] = useState(null);
  const painted = useStore(repaint);

  useEffect(() => {
    drawing.current = new MapCanvas(scroller.current, spacer.current, canvas.current);
    const resized = new ResizeObserver(() => drawing.current.measure());
    resized.observe(scroller.current);
    const feed = followMap(
      (next) => {
        model.current = next.model;
        setAnswer(next);
        drawing.current.show(next.model);
      },
      (cells) => {
        drawing.current.changed(cells);
        drawAgain((times) => times + 1);
      },
      (error) => setAnswer((known) => ({ ...known, error })),
    );
    return () => {
      resized.disconnect();
      feed();
    };
  }, []);
  useEffect(() => drawing.current.measure(), [painted]);

  function point(cell, fixed) {
    setPointed(cell && cell[1] !== null ? { cell, fixed, place: drawing.current.place(cell) } : null);
  }

  function onKeyDown(event) {
    const known = drawing.current.cursor;
    if (event.key === "Enter" && known) go(["flows", ...nameOf(model.current, known)]);
    else if (event.key.startsWith("Arrow") && model.current?.cells) {
      event.preventDefault();
      const next = known ? drawing.current.step(known, event.key) : [0, 0];
      drawing.current.focus(next);
      point(next, true);
    }
  }

  function onClick(event) {
    const cell = drawing.current.at(event);
    if (!cell) return;
    const [application, stream, shard] = nameOf(model.current, cell);
    if (shard === null) go(["flows"], { application, stream });
    else go(["flows", application, stream, shard]);
  }

  function light(owner) {
    drawing.current.lit = owner;
    drawing.current.redraw();
  }

  const counts = model.current && tally(model.current);
  return html`<${Panel} title="Who owns what" class="map" aside=${model.current && plural(model.current.cells, "flow")}>
    <${Problem} error=${answer.error} />
    <${Legend} model=${model.current} counts=${counts} light=${light} />
    <div class="map-box">
      <div
        ref=${scroller}
        class="map-scroll"
        onScroll=${() => {
          drawing.current.redraw();
          setPointed(null);
        }}
      >
        <div ref=${spacer} class="map-spacer">
          <canvas
            ref=${canvas}
            tabindex="0"
            role="img"
            aria-label=${summary(model.current, counts)}
            onPointerMove=${(event) => point(drawing.current.at(event))}
            onPointerLeave=${() => setPointed(null)}
            onClick=${onClick}
            onKeyDown=${onKeyDown}
            onBlur=${() => {
              drawing.current.focus(null);
              setPointed(null);
            }}
          ></canvas>
        </div>
      </div>
      ${pointed && html`<${Tip} model=${model.current} pointed=${pointed} width=${scroller.current.clientWidth} />`}
    </div>
    <div class="hidden-text" aria-live="polite">${pointed?.fixed ? told(model.current, pointed.cell) : ""}</div>
    ${model.current && !model.current.cells && html`<${Empty}>No application reads a stream yet.<//>`}
  <//>`;
}

/** Keep a model of the map up to date. Gives what ends it. */
function followMap(onWhole, onChanges, onError) {
  let model = null;
  let asking = null;

  async function ask() {
    if (asking) return;
    asking = new AbortController();
    try {
      const map = await get("map", {}, asking.signal);
      model = modelOf(map);
      onWhole({ map, model });
    } catch (error) {
      if (error.name !== "AbortError") onError(error);
    } finally {
      asking = null;
    }
  }

  function onEvent(event) {
    if (!model) return; // what is asked for now may be older: then the next event tells that something was missed
    const cells = applyChanges(model, event);
    if (cells) onChanges(cells);
    else ask();
  }

  ask();
  const ends = [listen("map", onEvent), listen("gap", ask), listen("back", ask)];
  const timer = setInterval(() => document.hidden || ask(), WHOLE_MS);
  return () => {
    clearInterval(timer);
    asking?.abort();
    for (const end of ends) end();
  };
}

function Legend({ model, counts, light }) {
  if (!model) return html`<div class="legend skeleton-line"></div>`;
  const shown = model.names
    .map((name, index) => ({ name, index, owned: counts.owned[index], state: model.state.get(name) ?? "gone" }))
    .filter(({ name, owned, state }) => owned || state !== "gone" || Date.now() - model.left.get(name) < LEFT_MS)
    .sort((one, other) => one.name.localeCompare(other.name));
  return html`<div class="legend">
    <ul aria-label="publishers">
      ${shown.map(
        ({ name, index, owned, state }) =>
          html`<li key=${name} data-publisher=${name} data-state=${state}>
            <a
              href=${href(["flows"], { publisher: name })}
              title=${`${name}: ${state}`}
              onPointerEnter=${() => light(index)}
              onPointerLeave=${() => light(null)}
              onFocus=${() => light(index)}
              onBlur=${() => light(null)}
            >
              <${Swatch} name=${name} /><span class="cut">${name}</span>
              ${state !== "running" && html`<em>${state}</em>`}
              <span class="number">${count(owned)}</span>
            </a>
          </li>`,
      )}
      <li key="" data-publisher="">
        <span><span class="swatch"></span>no owner<span class="number">${count(counts.nobody)}</span></span>
      </li>
    </ul>
    <ul class="states" aria-label="states">
      ${Object.entries(STATES).map(
        ([state, { letter, meaning }]) =>
          html`<li key=${state} data-state=${state} data-none=${counts.letters[letter] ? null : ""}>
            <a href=${href(["flows"], { state })} title=${meaning}>
              <${MapSign} state=${state} />${state}<span class="number">${count(counts.letters[letter] ?? 0)}</span>
            </a>
          </li>`,
      )}
    </ul>
  </div>`;
}

function Tip({ model, pointed, width }) {
  const [row, shard] = pointed.cell;
  const { application, stream, owners, states } = model.rows[row];
  const [x, y] = pointed.place;
  const name = owners[shard] === NOBODY ? null : model.names[owners[shard]];
  const style =
    x > width / 2 ? { right: `${width - x + 4}px`, top: `${y + 22}px` } : { left: `${x + 4}px`, top: `${y + 22}px` };
  return html`<div class="tip" style=${style}>
    <strong>${application}/${stream}/${shard}</strong>
    <${State} state=${stateOf(states[shard])} />
    <span class="owner">${name ? html`<${Swatch} name=${name} />${name}` : "no owner"}</span>
  </div>`;
}

function nameOf(model, [row, shard]) {
  const { application, stream } = model.rows[row];
  return [application, stream, shard];
}

function told(model, cell) {
  const [row, shard] = cell;
  const { owners, states } = model.rows[row];
  const owner = owners[shard] === NOBODY ? "no owner" : `owner ${model.names[owners[shard]]}`;
  return `${nameOf(model, cell).join("/")}, ${stateOf(states[shard])}, ${owner}`;
}

function summary(model, counts) {
  if (!model) return UNKNOWN;
  const owners = model.names.map((name, index) => [name, counts.owned[index]]).filter(([, owned]) => owned);
  const parts = owners.map(([name, owned]) => `${name} owns ${owned}`);
  if (counts.nobody) parts.push(`${counts.nobody} have no owner`);
  return `map of ${model.cells} flows: ${parts.join(", ")}; arrow keys tell of each`;
}
