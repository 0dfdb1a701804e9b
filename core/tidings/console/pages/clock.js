/** The time, once a second: all relative times on a page are drawn from one clock. */
import { store } from "./store.js";

const TICK_MS = 1000;

export const now = store(Date.now());

setInterval(() => document.hidden || now.set(Date.now()), TICK_MS);
