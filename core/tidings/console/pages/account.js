/** Signing in and out. */
import { get, post } from "./api.js";
import { setSession } from "./session.js";

export async function loadSession() {
  try {
    setSession(await get("me"));
  } catch (error) {
    if (error.status !== 401) throw error;
  }
}

export async function signIn(user, password) {
  await post("sign-in", { user, password });
  await loadSession();
}

export async function signOut() {
  await post("sign-out");
  setSession(null);
}
