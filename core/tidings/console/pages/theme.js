/** Light, dark, or as the system has it; kept in this browser. */
import { store } from "./store.js";

const KEY = "tidings.theme";
const THEMES = ["system", "light", "dark"];

export const theme = store(THEMES.includes(read()) ? read() : "system");
/** Counts the changes of what is drawn: canvases take their colours anew. */
export const repaint = store(0);

apply();
theme.watch(() => {
  write(theme.get());
  apply();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint.set(repaint.get() + 1));

export function nextTheme() {
  theme.set(THEMES[(THEMES.indexOf(theme.get()) + 1) % THEMES.length]);
}

/** A colour of the style sheet, as the present theme has it. */
export function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const probe = document.createElement("i");
probe.hidden = true;
document.documentElement.append(probe);

function apply() {
  document.documentElement.dataset.theme = theme.get();
  repaint.set(repaint.get() + 1);
}

function read() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be forbidden
  }
}

function write(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // then it holds until the page is closed
  }
}
