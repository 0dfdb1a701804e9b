/** What a page shows of the server: asked when it opens, and again now and then while somebody looks. */
import { get } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { listen } from "./live.js";

export const REFRESH_MS = 5000;
const FOLLOW_MS = [1200, 3000]; // after something was done: the server reads the cluster again only now and then

/**
 * `data` stays what it was while the same path is asked again, so that nothing jumps; it is undefined until the first
 * answer. `error` is an ApiError, `stale` is true while the answer to another query is shown. `reload` asks at once, and soon
 * again, since what was done shows only after a moment.
 */
export function useQuery(path, query = {}, { every = REFRESH_MS } = {}) {
  const [answer, setAnswer] = useState({});
  const key = JSON.stringify([path, query]);
  const latest = useRef(key);
  latest.current = key;
  const running = useRef(null);

  const load = useCallback(async () => {
    if (path === null) return;
    running.current?.abort();
    const control = new AbortController();
    running.current = control;
    try {
      const data = await get(path, query, control.signal);
      if (latest.current === key) setAnswer({ path, key, data, at: Date.now() });
    } catch (error) {
      if (error.name !== "AbortError" && latest.current === key) {
        setAnswer((known) => ({ path, key, data: known.path === path ? known.data : undefined, at: known.at, error }));
      }
    }
    if (running.current === control) running.current = null;
  }, [key]);

  useEffect(() => {
    latest.current = key;
    load();
    return () => {
      running.current?.abort();
      latest.current = null; // nothing is asked any more
    };
  }, [load]);

  useEffect(() => {
    // Who is still waiting for an answer waits on: asking again would take it away.
    const timer = every ? setInterval(() => document.hidden || running.current || load(), every) : 0;
    const seen = () => document.hidden || load();
    document.addEventListener("visibilitychange", seen);
    const unheard = listen("gap", load);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
      unheard();
    };
  }, [load, every]);

  const reload = useCallback(() => {
    load();
    for (const wait of FOLLOW_MS) setTimeout(() => latest.current === key && load(), wait);
  }, [load]);

  const known = answer.path === path;
  return {
    data: known ? answer.data : undefined,
    error: known ? answer.error : undefined,
    at: known ? answer.at : undefined,
    stale: known && answer.key !== key,
    reload,
  };
}
