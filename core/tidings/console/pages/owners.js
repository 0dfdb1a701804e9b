/** Which colour a publisher has: as the server gives them out, so that all pages of all who look have the same. */
import { listen } from "./live.js";
import { store } from "./store.js";

export const COLOURS = 8;

/** The number of each publisher's colour, by name. */
export const given = store(new Map());

listen("map", ({ publishers }) => meet(publishers));

/** These are the publishers now, as the map tells of them. */
export function meet(publishers) {
  const next = new Map();
  for (const { name, colour } of publishers) if (Number.isInteger(colour)) next.set(name, colour);
  const known = given.get();
  if (next.size !== known.size || [...next].some(([name, number]) => known.get(name) !== number)) given.set(next);
}

/** `colour` is one of the palette, or null if it was gone long ago; `round` tells those apart that share one. */
export function look(name) {
  const number = given.get().get(name);
  if (number === undefined) return { colour: null, round: 0 };
  return { colour: number % COLOURS, round: Math.floor(number / COLOURS) };
}
