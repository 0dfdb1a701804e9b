/** Who is signed in: undefined until the server has been asked, null for nobody, else what /api/me tells. */
import { store, useStore } from "./store.js";

export const session = store(undefined);
/** Whether somebody was signed in, and did not sign out. */
export const ended = store(false);

export function setSession(me) {
  ended.set(false);
  session.set(me);
}

/** Nobody is signed in, as the server says; `was` if it knows that somebody was. */
export function endSession(was = false) {
  if (was || session.get()) ended.set(true);
  session.set(null);
}

/** Whether the one who is signed in may act. The server decides; this only spares viewers the buttons. */
export function useOperator() {
  return useStore(session)?.role === "operator";
}
