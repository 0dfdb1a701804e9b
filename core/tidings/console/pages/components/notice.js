/** What a page has to say beside its data: an error, a partial answer, nothing to show. */
import { html } from "../html.js";

export function Problem({ error }) {
  if (!error) return null;
  return html`<pre class="notice" data-kind="error" role="alert">${error.message ?? String(error)}</pre>`;
}

/** A list that is not whole says so, with its reasons. */
export function Partial({ answer }) {
  if (!answer?.partial && !answer?.problems?.length) return null;
  return html`<div class="notice" data-kind="warning" role="status">
    ${answer.partial && html`<strong>Not everything is shown.</strong>`}
    ${(answer.problems ?? []).map((problem) => html`<div>${problem}</div>`)}
  </div>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}
