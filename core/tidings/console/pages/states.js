/** The states of a flow: their letter on the map and what each means. Sign and colour are in the style and the painter. */
export const STATES = {
  running: { letter: "r", meaning: "a publisher sends it to a running subscriber" },
  paused: { letter: "p", meaning: "an operator has paused it; its owner keeps it" },
  stopped: { letter: "s", meaning: "an operator has stopped it; nobody owns it" },
  failed: { letter: "f", meaning: "it cannot go on; the reason says why" },
  restarting: { letter: "t", meaning: "it is being opened again" },
  waiting: { letter: "w", meaning: "a publisher owns it, and no running subscriber holds it" },
  unassigned: { letter: "u", meaning: "no publisher owns it" },
};

const BY_LETTER = Object.fromEntries(Object.entries(STATES).map(([name, { letter }]) => [letter, name]));

export function stateOf(letter) {
  return BY_LETTER[letter] ?? letter;
}
