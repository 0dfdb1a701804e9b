/** A dialog: the browser's own, which keeps the focus inside and closes with Esc. */
import { html, useLayoutEffect, useRef } from "../html.js";

export function Dialog({ title, wide, onClose, children }) {
  const dialog = useRef(null);
  // Before the effects of what is inside, which may put the focus elsewhere than on the first button.
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog
    ref=${dialog}
    data-wide=${wide ? "" : null}
    aria-label=${title}
    onClose=${onClose}
    onClick=${(event) => event.target === dialog.current && onClose()}
  >
    <div class="dialog">
      <header>
        <h2>${title}</h2>
        <button type="button" class="quiet" aria-label="close" onClick=${onClose}>✕</button>
      </header>
      ${children}
    </div>
  </dialog>`;
}
