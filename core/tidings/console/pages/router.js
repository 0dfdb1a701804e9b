/** Where one is: the path and the query in the fragment of the address, so that a view can be shared. */
import { store } from "./store.js";

export const route = store(parse(location.hash));

addEventListener("hashchange", () => route.set(parse(location.hash)));

/** `#/flows/cache/contacts/0?tab=x` gives its names, decoded, and its query. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { names: path.split("/").filter(Boolean).map(decode), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function href(names, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== ""));
  const text = asked.toString();
  return `#/${names.map((name) => encodeURIComponent(String(name))).join("/")}${text ? `?${text}` : ""}`;
}

export function go(names, query = {}) {
  location.hash = href(names, query);
}

/** Change some of the query. Who types does not leave a trail of half words in the history. */
export function setQuery(changes) {
  const { names, query } = route.get();
  history.replaceState(null, "", href(names, { ...query, ...changes }));
  route.set(parse(location.hash));
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
