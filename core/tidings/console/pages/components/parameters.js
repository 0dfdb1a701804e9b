/** What an action needs to know before its preview. */
import { plural } from "../format.js";
import { html, useEffect, useRef } from "../html.js";
import { useQuery } from "../query.js";
import { Owner } from "./owner.js";
import { Problem } from "./notice.js";

const TARGETS = [
  { to: "earliest", title: "Earliest", hint: "the oldest update that the log holds" },
  { to: "latest", title: "Latest", hint: "the head: what is there is not sent" },
  { to: "datetime", title: "A time", hint: "ISO 8601 with a zone", example: "2031-05-07T12:30:00Z" },
  { to: "by-duration", title: "A time ago", hint: "an ISO 8601 duration", example: "PT1H30M" },
  { to: "shift-by", title: "Shift", hint: "updates forth, or back if below 0", example: "-100" },
  { to: "position", title: "A position", hint: "as flows show it", example: "4711" },
];

export const PARAMETERS = { publisher: ToPublisher, target: ToTarget, position: AtPosition };

/** What is chosen, or else the first that can be, has the focus once it is there. */
function Form({ ready, loaded = true, onSubmit, children }) {
  const form = useRef(null);
  useEffect(() => {
    const chosen = form.current.querySelector("input:checked") ?? form.current.querySelector("input:not(:disabled)");
    chosen?.focus();
  }, [loaded]);
  return html`<form
    ref=${form}
    class="parameters"
    onSubmit=${(event) => {
      event.preventDefault();
      if (ready) onSubmit();
    }}
  >
    ${children}
    <footer>
      <span class="spring"></span><button type="submit" class="primary" disabled=${!ready}>Preview</button>
    </footer>
  </form>`;
}

function ToPublisher({ value, onChange, onSubmit }) {
  const { data, error } = useQuery("publishers");
  return html`<${Form} ready=${Boolean(value.to)} loaded=${Boolean(data)} onSubmit=${onSubmit}>
    <${Problem} error=${error} />
    <fieldset class="choices">
      <legend>To which publisher?</legend>
      ${(data?.items ?? []).map(
        ({ name, state, flows }) =>
          html`<label key=${name}>
            <input
              type="radio"
              name="to"
              value=${name}
              checked=${value.to === name}
              disabled=${state !== "running"}
              onChange=${() => onChange({ to: name })}
            />
            <${Owner} name=${name} link=${false} /><em>${state === "running" ? plural(flows, "flow") : state}</em>
          </label>`,
      )}
    </fieldset>
  <//>`;
}

function ToTarget({ value, onChange, onSubmit }) {
  const chosen = TARGETS.find(({ to }) => to === value.to);
  return html`<${Form} ready=${chosen && (!chosen.example || value.value)} onSubmit=${onSubmit}>
    <fieldset class="choices">
      <legend>To where? A flow has to be stopped first.</legend>
      ${TARGETS.map(
        ({ to, title, hint, example }) =>
          html`<label key=${to}>
            <input type="radio" name="to" value=${to} checked=${value.to === to} onChange=${() => onChange({ to })} />
            <span>${title}</span><em>${hint}</em>
            ${
              example &&
              value.to === to &&
              html`<input
                class="value"
                aria-label=${title}
                placeholder=${example}
                value=${value.value ?? ""}
                autocomplete="off"
                onInput=${(event) => onChange({ to, value: event.target.value.trim() })}
              />`
            }
          </label>`,
      )}
    </fieldset>
  <//>`;
}

function AtPosition({ value, onChange, onSubmit }) {
  const text = value.position ?? "";
  return html`<${Form} ready=${text === "" || /^\d+(\.\d+)?$/.test(text)} onSubmit=${onSubmit}>
    <label
      >The position of the update that is to be skipped; empty for the one that the flow failed at
      <input
        value=${text}
        inputmode="decimal"
        autocomplete="off"
        placeholder="4711"
        onInput=${(event) => onChange({ position: event.target.value.trim() })}
      />
    </label>
  <//>`;
}
