/** Keys: single ones and sequences such as `g f`. Who types in a field is left alone. */
import { useEffect, useRef } from "./html.js";

const SEQUENCE_MS = 1200;
const bound = []; // what is shown last comes first
let begun = null;

/** While the component is shown, these keys do these things: {"/": focusSearch, "g f": goToFlows}. */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    bound.unshift(latest);
    return () => bound.splice(bound.indexOf(latest), 1);
  }, []);
}

function actionOf(key) {
  return bound.find(({ current }) => current[key])?.current[key];
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const sequence = begun && Date.now() - begun.at < SEQUENCE_MS ? `${begun.key} ${event.key}` : null;
  begun = { key: event.key, at: Date.now() };
  const action = (sequence && actionOf(sequence)) || actionOf(event.key);
  if (!action) return;
  event.preventDefault();
  action(event);
});

function typing(target) {
  return target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
}
