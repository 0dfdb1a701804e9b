/** A click on a row opens it, wherever there is nothing else to click; who selects text in it is left alone. */
const OTHERWISE_CLICKED = "a, button, input, label, dialog, .select";

export function onRow(open) {
  return (event) => {
    if (event.target.closest(OTHERWISE_CLICKED) || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (getSelection().isCollapsed) open();
  };
}
