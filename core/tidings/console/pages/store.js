/** A value that can be watched. */
import { useEffect, useState } from "./html.js";

export function store(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore(of) {
  const [value, setValue] = useState(of.get);
  useEffect(() => {
    setValue(() => of.get());
    return of.watch((next) => setValue(() => next));
  }, [of]);
  return value;
}
