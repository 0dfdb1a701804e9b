/** Which rows are chosen, by their key; a click with shift takes all between it and the one before. */
import { useMemo, useRef, useState } from "./html.js";

export function useSelection(rowKey) {
  const [chosen, setChosen] = useState(() => new Set());
  const anchor = useRef(null);
  return useMemo(() => {
    const change = (rows, on) =>
      setChosen((known) => {
        const next = new Set(known);
        for (const row of rows) on ? next.add(rowKey(row)) : next.delete(rowKey(row));
        return next;
      });
    return {
      keys: chosen,
      has: (row) => chosen.has(rowKey(row)),
      setAll: change,
      clear: () => setChosen(new Set()),
      toggle(rows, index, range) {
        const on = !chosen.has(rowKey(rows[index]));
        const from = range ? rows.findIndex((row) => rowKey(row) === anchor.current) : -1;
        const [low, high] = from < 0 ? [index, index] : [Math.min(from, index), Math.max(from, index)];
        anchor.current = rowKey(rows[index]);
        change(rows.slice(low, high + 1), on);
      },
    };
  }, [chosen]);
}
