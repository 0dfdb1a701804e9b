/** Signing in. The address stays what it was, so that one is where one wanted to be afterwards. */
import { signIn } from "../account.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { ended } from "../session.js";
import { useStore } from "../store.js";

export function SignIn() {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const again = useStore(ended);
  const user = useRef(null);
  const password = useRef(null);

  useEffect(() => {
    document.title = "Sign in · tidings";
    user.current.focus();
  }, []);

  async function onSubmit(event) {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await signIn(user.current.value, password.current.value);
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
      password.current.select();
    }
  }

  return html`<main class="sign-in">
    <form onSubmit=${onSubmit}>
      <h1><img src="favicon.svg" alt="" width="28" height="28" />tidings</h1>
      ${again && html`<p role="status">Your sign-in has ended; sign in again to go on.</p>`}
      <label
        >User<input ref=${user} name="user" autocomplete="username" required autocapitalize="none" spellcheck=${false}
      /></label>
      <label
        >Password<input ref=${password} name="password" type="password" autocomplete="current-password" required
      /></label>
      <p class="refusal" role="alert">${error?.message ?? ""}</p>
      <button type="submit" class="primary" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}
