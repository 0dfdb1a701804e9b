/**
 * One action, from its parameters over a preview to its result. Nothing is done before the preview has been seen and
 * confirmed; the server refuses a plan if what it was made from has changed meanwhile.
 */
import { post } from "../api.js";
import { count, plain, plural, position } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Changes, differ, isIdle } from "./changes.js";
import { Dialog } from "./dialog.js";
import { Problem } from "./notice.js";
import { PARAMETERS } from "./parameters.js";
import { Time } from "./time.js";
import { UpdateContent } from "./update.js";

const TYPED_FROM = 100;

export function ActionDialog({ action, flows, number, fixed, onClose }) {
  const [step, setStep] = useState(action.parameters ? "choose" : "preview");
  const [parameters, setParameters] = useState(fixed);
  const [plan, setPlan] = useState(null);
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);

  async function ask(path, body, then) {
    setBusy(true);
    setError(null);
    try {
      then(await post(path, body));
    } catch (refusal) {
      setError(refusal);
    }
    setBusy(false);
  }

  const preview = (given) => {
    setPlan(null);
    setStep("preview");
    ask("actions/preview", { action: action.action, flows, parameters: given }, setPlan);
  };
  const execute = () =>
    ask("actions/execute", { plan: plan.plan }, (answer) => {
      setResult(answer);
      setStep("result");
    });
  useEffect(() => {
    if (!action.parameters) preview(parameters);
  }, []);

  const Fields = PARAMETERS[action.parameters];
  const which = flows.length === 1 ? flows[0] : number && plural(number, "flow");
  const title = plan?.title ?? [action.title.replace("…", ""), action.what, which].filter(Boolean).join(" ");
  return html`<${Dialog} title=${title} wide=${step !== "choose"} onClose=${() => onClose(result !== null)}>
    <${Problem} error=${error} />
    ${
      step === "choose" &&
      html`<${Fields}
        value=${parameters}
        onChange=${(given) => setParameters({ ...fixed, ...given })}
        onSubmit=${() => preview(parameters)}
      />`
    }
    ${
      step === "preview" &&
      html`<${Preview}
        plan=${plan}
        busy=${busy}
        failed=${error !== null}
        back=${action.parameters ? () => setStep("choose") : null}
        again=${() => preview(parameters)}
        execute=${execute}
        cancel=${() => onClose(false)}
      />`
    }
    ${step === "result" && html`<${Result} result=${result} close=${() => onClose(true)} />`}
  <//>`;
}

function Preview({ plan, busy, failed, back, again, execute, cancel }) {
  const [typed, setTyped] = useState("");
  const field = useRef(null);
  const button = useRef(null);
  const total = plan?.count ?? plan?.changes.length ?? 0;
  const type = total > TYPED_FROM;
  useEffect(() => {
    if (plan) (field.current ?? button.current)?.focus();
  }, [plan]);
  const idle = plan && plan.changes.length === total && isIdle(plan.changes);
  const ready = plan && total > 0 && !idle && !busy && !failed && (!type || typed.trim() === String(total));

  return html`<form
    onSubmit=${(event) => {
      event.preventDefault();
      if (ready) execute();
    }}
  >
    ${plan?.warnings.map((warning) => html`<div class="notice" data-kind="warning">${warning}</div>`)}
    <${Changes} changes=${plan?.changes} total=${total} waiting=${busy} />
    ${plan?.changes.filter(({ update }) => update).map(({ position: at, update }) => html`<${Doomed} at=${at} update=${update} />`)}
    ${
      type &&
      html`<label class="typed"
        >Type ${total} to confirm
        <input
          ref=${field}
          inputmode="numeric"
          autocomplete="off"
          value=${typed}
          onInput=${(event) => setTyped(event.target.value)}
        />
      </label>`
    }
    <footer>
      ${back && html`<button type="button" onClick=${back}>Back</button>`}
      <span class="spring"></span>
      <button type="button" onClick=${cancel}>Cancel</button>
      ${
        failed
          ? html`<button type="button" class="primary" disabled=${busy} onClick=${again}>Preview again</button>`
          : html`<button
              ref=${button}
              type="submit"
              class=${plan?.destructive ? "primary danger" : "primary"}
              disabled=${!ready}
            >
              ${total > 1 ? `Do it for ${count(total)}` : "Do it"}
            </button>`
      }
    </footer>
  </form>`;
}

/** The update that would be left out. */
function Doomed({ at, update }) {
  return html`<section class="doomed" aria-label="the update">
    <p>
      <strong>${update.object}</strong>
      <em>version ${plain(update.version)}, position ${position(at)}, <${Time} at=${update.time} /></em>
    </p>
    <${UpdateContent} update=${update} />
  </section>`;
}

function Result({ result, close }) {
  const button = useRef(null);
  useEffect(() => button.current.focus(), []);
  return html`<div class="result" role="status">
    ${
      result.failed.length > 0 &&
      html`<div class="notice" data-kind="error">
        <strong>${plural(result.failed.length, "flow")} could not be changed.</strong>
        <ul>
          ${result.failed.map(({ flow, error }) => html`<li><code>${flow}</code> ${error}</li>`)}
        </ul>
      </div>`
    }
    <p>${plural(result.count ?? result.done.length, "change")} done.</p>
    ${differ(result.done) && html`<${Changes} changes=${result.done} total=${result.count} />`}
    <footer>
      <span class="spring"></span><button ref=${button} type="button" class="primary" onClick=${close}>Close</button>
    </footer>
  </div>`;
}
