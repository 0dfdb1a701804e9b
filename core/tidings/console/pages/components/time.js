/** A time: how long ago, with the exact one to hover over. */
import { now } from "../clock.js";
import { UNKNOWN, ago } from "../format.js";
import { html } from "../html.js";
import { useStore } from "../store.js";

export function Time({ at }) {
  const present = useStore(now);
  const ms = typeof at === "number" ? at : Date.parse(at);
  if (!at || Number.isNaN(ms)) return html`<span class="unknown">${UNKNOWN}</span>`;
  const exact = new Date(ms).toISOString();
  return html`<time datetime=${exact} title=${exact}>${ago(ms, present)}</time>`;
}
