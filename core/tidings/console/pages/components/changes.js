/** What is before and what comes after, a line for each flow; only what differs is shown. */
import { count, inline } from "../format.js";
import { html } from "../html.js";

const SHOWN = 500;

export function Changes({ changes, total = changes?.length, waiting }) {
  if (!changes) return html`<div class="changes" aria-busy="true">${waiting ? "Looking…" : ""}</div>`;
  const fields = [...new Set(changes.flatMap(({ before, after }) => differing(before, after)))];
  return html`<div class="changes">
    <table>
      <caption class="hidden-text">
        before and after
      </caption>
      <thead>
        <tr>
          <th scope="col">${changes.some(({ flow }) => !flow.includes("/")) ? "Publisher" : "Flow"}</th>
          ${fields.map((field) => html`<th scope="col">${title(field)}</th>`)}
          <th scope="col"></th>
        </tr>
      </thead>
      <tbody>
        ${changes.slice(0, SHOWN).map(
          ({ flow, before, after, warning }) =>
            html`<tr key=${flow}>
              <th scope="row">${flow}</th>
              ${fields.map((field) => html`<td><${Step} from=${before?.[field]} to=${after?.[field]} /></td>`)}
              <td class="warning">${warning ?? ""}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    ${changes.length === 0 && html`<p class="empty">Nothing would change.</p>`}
    ${total > Math.min(SHOWN, changes.length) && html`<p class="empty">and ${count(total - Math.min(SHOWN, changes.length))} more</p>`}
  </div>`;
}

function Step({ from, to }) {
  if (inline(from) === inline(to)) return html`<span class="same">${inline(to)}</span>`;
  return html`<span class="before">${inline(from)}</span> → <strong class="after">${inline(to)}</strong>`;
}

/** Whether they are all of a kind that changes nothing. */
export function isIdle(changes) {
  return changes.every(({ before, after, update }) => !update && differing(before, after).length === 0);
}

/** Whether there is anything to show of them. */
export function differ(changes) {
  return changes.some(({ before, after, warning }) => warning || differing(before, after).length > 0);
}

function differing(before, after) {
  return Object.keys({ ...before, ...after }).filter((field) => inline(before?.[field]) !== inline(after?.[field]));
}

function title(field) {
  return field.replaceAll("_", " ");
}
