/** A publisher's name beside its colour on the map. */
import { UNKNOWN } from "../format.js";
import { html } from "../html.js";
import { given, look } from "../owners.js";
import { href } from "../router.js";
import { useStore } from "../store.js";

export function Swatch({ name }) {
  useStore(given);
  const { colour, round } = look(name);
  return html`<span class="swatch" data-colour=${colour} data-round=${round % 4} aria-hidden="true"></span>`;
}

export function Owner({ name, link = true }) {
  if (!name) return html`<span class="unknown">${UNKNOWN}</span>`;
  const inner = html`<${Swatch} name=${name} /><span class="cut">${name}</span>`;
  if (!link) return html`<span class="owner" title=${name}>${inner}</span>`;
  return html`<a class="owner" href=${href(["flows"], { publisher: name })} title=${name}>${inner}</a>`;
}
