/** Buttons for what an operator may do. Viewers get none. */
import { html, useState } from "../html.js";
import { useOperator } from "../session.js";
import { ActionDialog } from "./action-dialog.js";

/** `parameters` names what is asked before the preview, `what` is the part of a flow that it is done to. */
export const FLOW_ACTIONS = [
  { action: "move", title: "Move…", parameters: "publisher" },
  { action: "unpin", title: "Unpin" },
  { action: "pause", title: "Pause" },
  { action: "resume", title: "Resume" },
  { action: "stop", title: "Stop" },
  { action: "reset", title: "Reset…", parameters: "target" },
];
export const ONE_FLOW_ACTIONS = [
  ...FLOW_ACTIONS,
  { action: "skip", title: "Skip…", what: "an update of", parameters: "position" },
];

/** For these flows, or for what is `fixed` in the parameters, which is a `number` of flows. */
export function Actions({ actions, flows, number = flows.length, fixed = {}, onDone }) {
  const operator = useOperator();
  const [chosen, setChosen] = useState(null);
  if (!operator) return null;
  return html`<div class="actions">
    ${actions.map((one) => html`<button type="button" key=${one.action} onClick=${() => setChosen(one)}>${one.title}</button>`)}
    ${
      chosen &&
      html`<${ActionDialog}
        action=${chosen}
        flows=${flows}
        number=${number}
        fixed=${fixed}
        onClose=${(done) => {
          setChosen(null);
          if (done) onDone?.();
        }}
      />`
    }
  </div>`;
}
