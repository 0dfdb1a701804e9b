/** The keys, as `?` shows them. */
import { html } from "../html.js";
import { PAGES } from "../navigation.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["/", "search"],
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "select the row, with shift all between"],
  ["Esc", "close, leave the field"],
  ["← ↑ ↓ →", "walk over the map; Enter opens the flow"],
  ["?", "this help"],
];

export function Help({ onClose }) {
  return html`<${Dialog} title="Keys" wide onClose=${onClose}>
    <div class="keys">
      <dl>
        ${KEYS.map(
          ([key, what]) =>
            html`<div>
              <dt><kbd>${key}</kbd></dt>
              <dd>${what}</dd>
            </div>`,
        )}
      </dl>
      <dl>
        ${PAGES.map(
          ({ key, title }) =>
            html`<div>
              <dt><kbd>g</kbd> <kbd>${key}</kbd></dt>
              <dd>${title}</dd>
            </div>`,
        )}
      </dl>
    </div>
  <//>`;
}
