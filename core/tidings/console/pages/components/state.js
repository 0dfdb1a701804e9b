/** A state: a sign of its own beside the word, so that its colour is not all that tells. */
import { UNKNOWN } from "../format.js";
import { html } from "../html.js";
import { STATES } from "../states.js";

const SIGNS = {
  running: html`<circle cx="6" cy="6" r="4" fill="currentColor" />`,
  paused: html`<path d="M3 2h2v8H3zM7 2h2v8H7z" fill="currentColor" />`,
  stopped: html`<rect x="2.5" y="2.5" width="7" height="7" fill="currentColor" />`,
  failed: html`<path d="M2.5 2.5l7 7m0-7l-7 7" stroke="currentColor" stroke-width="2.2" />`,
  restarting: html`<path
    d="M9.5 6A3.5 3.5 0 1 1 6 2.5h2M6.4 .8L8.2 2.5 6.4 4.2"
    fill="none"
    stroke="currentColor"
    stroke-width="1.5"
  />`,
  waiting: html`<circle cx="6" cy="6" r="3.3" fill="none" stroke="currentColor" stroke-width="1.6" />`,
  unassigned: html`<circle
    cx="6"
    cy="6"
    r="3.6"
    fill="none"
    stroke="currentColor"
    stroke-width="1.6"
    stroke-dasharray="1.8 2"
  />`,
  draining: html`<path d="M6 1.5v6M3 5.5l3 3 3-3M2 10.7h8" fill="none" stroke="currentColor" stroke-width="1.5" />`,
  gone: html`<path d="M2 6h8" stroke="currentColor" stroke-width="2" />`,
};

export function Sign({ state }) {
  return html`<svg class="sign" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
    ${SIGNS[state] ?? SIGNS.unassigned}
  </svg>`;
}

/** With `short`, the sign alone is seen. */
export function State({ state, reason, short }) {
  if (!state) return html`<span class="unknown">${UNKNOWN}</span>`;
  const title = [short && state, STATES[state]?.meaning, reason].filter(Boolean).join(": ");
  return html`<span class="state" data-state=${state} title=${title || null}
    ><${Sign} state=${state} /><span class=${short ? "hidden-text" : null}>${state}</span></span
  >`;
}
