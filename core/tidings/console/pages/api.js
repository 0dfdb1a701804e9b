/** What the server is asked, and how its refusals come back: always an ApiError with one sentence for the reader. */
import { parseJson, writeJson } from "./json.js";
import { endSession, session } from "./session.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function get(path, query = {}, signal = undefined) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") asked.set(name, value);
  }
  const text = asked.toString();
  return request(text ? `${path}?${text}` : path, { signal });
}

export function post(path, body = {}) {
  return request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Tidings-CSRF": session.get()?.csrf ?? "" },
    body: writeJson(body),
  });
}

/** A path of names that may hold anything. */
export function place(...names) {
  return names.map((name) => encodeURIComponent(String(name))).join("/");
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(`api/${path}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the console cannot be reached", 0);
  }
  const answer =
    response.status === 204
      ? null
      : await response
          .text()
          .then(parseJson)
          .catch(() => null);
  if (response.ok) return answer;
  if (response.status === 401 && path !== "sign-in") endSession(answer?.ended);
  throw new ApiError(answer?.error ?? `the console answered ${response.status}`, response.status);
}
