/** The console: sign-in, or the shell with the page that the address names. */
import { loadSession } from "./account.js";
import { Shell } from "./components/shell.js";
import { html, render, useEffect, useState } from "./html.js";
import { startLive, stopLive } from "./live.js";
import { session } from "./session.js";
import { useStore } from "./store.js";
import "./theme.js";
import { SignIn } from "./views/sign-in.js";

const RETRY_MS = 2000;

function App() {
  const me = useStore(session);
  const [unreachable, setUnreachable] = useState(null);

  useEffect(() => {
    let timer = 0;
    const ask = () =>
      loadSession().then(
        () => setUnreachable(null),
        (error) => {
          setUnreachable(error);
          timer = setTimeout(ask, RETRY_MS);
        },
      );
    ask();
    return () => clearTimeout(timer);
  }, []);

  const signedIn = Boolean(me);
  useEffect(() => {
    if (!signedIn) return undefined;
    startLive();
    return stopLive;
  }, [signedIn]);

  if (me) return html`<${Shell} me=${me} />`;
  if (me === null) return html`<${SignIn} />`;
  return html`<main class="waiting">${unreachable && html`<p role="alert">${unreachable.message}</p>`}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
