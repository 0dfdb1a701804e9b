/** Names and values, one beside the other. */
import { html } from "../html.js";

export function Facts({ of }) {
  return html`<dl class="facts">
    ${of.filter(Boolean).map(
      ([name, value]) =>
        html`<div>
          <dt>${name}</dt>
          <dd>${value}</dd>
        </div>`,
    )}
  </dl>`;
}
