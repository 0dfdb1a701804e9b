/** A titled part of a page. */
import { html, useMemo } from "../html.js";

let made = 0;

export function Panel({ title, aside, class: name = "", children }) {
  const id = useMemo(() => `panel-${(made += 1)}`, []);
  return html`<section class="panel ${name}" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>
      ${aside && html`<div class="aside">${aside}</div>`}
    </header>
    ${children}
  </section>`;
}
