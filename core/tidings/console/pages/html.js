/** Preact with htm: the one place from which the pages take both. All text goes through here, and none through innerHTML. */
import { h } from "./vendor/preact/preact.js";
import htm from "./vendor/htm/htm.js";

export { Fragment, render } from "./vendor/preact/preact.js";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact/hooks.js";

export const html = htm.bind(h);
