/** A field that narrows what is shown; `/` goes to it. It tells after a short rest, so that not every letter asks. */
import { html, useEffect, useRef, useState } from "../html.js";
import { useKeys } from "../keys.js";

const REST_MS = 250;

export function Search({ value = "", label, onValue, mono }) {
  const field = useRef(null);
  const [text, setText] = useState(value);
  const told = useRef(value);
  useEffect(() => {
    if (value !== told.current) setText(value);
    told.current = value;
  }, [value]);
  useEffect(() => {
    if (text === told.current) return undefined;
    const timer = setTimeout(() => tell(text), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  useKeys({
    "/": () => {
      field.current.focus();
      field.current.select();
    },
  });

  function tell(next) {
    told.current = next;
    onValue(next);
  }

  function onKeyDown(event) {
    if (event.key === "Enter") tell(text);
    if (event.key === "Escape") field.current.blur();
  }

  return html`<input
    ref=${field}
    type="search"
    class=${mono ? "search mono" : "search"}
    aria-label=${label}
    placeholder=${label}
    value=${text}
    spellcheck=${false}
    autocomplete="off"
    onInput=${(event) => setText(event.target.value)}
    onKeyDown=${onKeyDown}
  />`;
}
