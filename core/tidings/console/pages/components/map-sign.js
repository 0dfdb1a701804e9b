/** The shapes of cells, as the legend of the map shows them; `map/paint.js` draws the same. */
import { html } from "../html.js";

const SHAPES = {
  running: "M1 1h10v10H1z",
  paused: "M1 1h3.6v10H1zM7.4 1H11v10H7.4z",
  stopped: "M3.5 3.5h5v5h-5z",
  failed: "M0 0h12v12H0zM3.2 2.2l-1 1L5 6 2.2 8.8l1 1L6 7l2.8 2.8 1-1L7 6l2.8-2.8-1-1L6 5z",
  restarting: "M1 1h10L1 11z",
  waiting: "M1 1h10v10H1zM2.5 2.5v7h7v-7z",
  unassigned: "M4 4h4v4H4z",
};

export function MapSign({ state }) {
  return html`<svg class="map-sign" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
    <path d=${SHAPES[state]} fill="currentColor" fill-rule="evenodd" />
  </svg>`;
}
