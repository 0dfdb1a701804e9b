/** The banner that is shown while ZooKeeper is away, or the console: how old is what one sees? */
import { now } from "../clock.js";
import { UNKNOWN, duration } from "../format.js";
import { html } from "../html.js";
import { away, connection, heard } from "../live.js";
import { useStore } from "../store.js";

const PATIENCE_S = 5;

export function AwayBanner() {
  const gone = useStore(away);
  const state = useStore(connection);
  const last = useStore(heard);
  const present = useStore(now);
  const age = last === null ? null : Math.max(0, Math.floor((present - last) / 1000));
  const cut = state === "lost" && age !== null && age >= PATIENCE_S;
  if (!gone && !cut) return null;
  return html`<div class="banner" role="alert">
    <strong>${gone ? "ZooKeeper is away." : "The console cannot be reached."}</strong>
    ${" "}What is shown is ${age === null ? UNKNOWN : duration(age)} old.
    ${gone?.reason && html`<span class="reason">${gone.reason}</span>`}
  </div>`;
}
