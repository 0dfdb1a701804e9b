/** What is around every page: where one can go, how the cluster is, who is signed in. */
import { signOut } from "../account.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useKeys } from "../keys.js";
import { connection } from "../live.js";
import { PAGES, pageOf } from "../navigation.js";
import { go, href, route } from "../router.js";
import { useStore } from "../store.js";
import { nextTheme, theme } from "../theme.js";
import { AwayBanner } from "./away.js";
import { Help } from "./help.js";

export function Shell({ me }) {
  const where = useStore(route);
  const [help, setHelp] = useState(false);
  const { page, view: View, rest, title } = pageOf(where);
  const main = useRef(null);
  const list = useRef(null);
  const place = where.names.join("/");

  useEffect(() => {
    document.title = `${title} · tidings`;
  }, [title]);
  useEffect(() => {
    main.current.scrollTo(0, 0);
    scrollTo(0, 0);
  }, [place]);
  useEffect(() => {
    const shown = list.current; // which may be gone by the time that it is told of
    const resized = new ResizeObserver(() => showCurrent(shown));
    resized.observe(shown); // it tells at once, too
    return () => resized.disconnect();
  }, [place]);
  useKeys({
    "?": () => setHelp(true),
    Escape: () => document.activeElement?.blur?.(),
    ...Object.fromEntries(PAGES.map(({ name, key }) => [`g ${key}`, () => go([name])])),
  });

  return html`<div class="shell">
    <a
      class="skip"
      href="#main"
      onClick=${(event) => {
        event.preventDefault();
        main.current.focus();
      }}
      >Skip to the page</a
    >
    <header class="top">
      <a class="brand" href="#/overview"><img src="favicon.svg" alt="" width="20" height="20" /><span>tidings</span></a>
      <span class="cluster cut" title=${`cluster ${me.cluster}, version ${me.version}`}>${me.cluster}</span>
      <span class="spring"></span>
      <${Liveness} />
      <${ThemeSwitch} />
      <button type="button" class="quiet" title="keys (?)" aria-label="keys" onClick=${() => setHelp(true)}>?</button>
      <span class="user cut" title=${`${me.user}, ${me.role}`}>${me.user} <em>${me.role}</em></span>
      <button type="button" class="quiet" onClick=${() => signOut().catch(() => {})}>Sign out</button>
    </header>
    <nav class="side" aria-label="pages of the console">
      <ul ref=${list}>
        ${PAGES.map(
          ({ name, title: full, short, key }) =>
            html`<li key=${name}>
              <a href=${href([name])} aria-current=${name === page.name ? "page" : null} title=${`${full} (g ${key})`}
                >${short ?? full}</a
              >
            </li>`,
        )}
      </ul>
    </nav>
    <main id="main" ref=${main} tabindex="-1">
      <${AwayBanner} />
      ${me.read_only_reason && html`<p class="looks-only">Operators can only look at this console: ${me.read_only_reason}.</p>`}
      <${View} key=${place} names=${rest} query=${where.query} />
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  </div>`;
}

/** Where the pages are beside one another, and not all have room, the one that is open is in the middle. */
function showCurrent(list) {
  const current = list.querySelector("[aria-current]");
  list.scrollLeft = current.offsetLeft - list.offsetLeft - (list.clientWidth - current.offsetWidth) / 2;
}

function Liveness() {
  const state = useStore(connection);
  const words = { live: "live", connecting: "connecting…", lost: "reconnecting…" };
  return html`<span class="liveness" data-connection=${state} role="status">${words[state]}</span>`;
}

const THEME_SIGNS = { system: "◐", light: "☀", dark: "☾" };

function ThemeSwitch() {
  const chosen = useStore(theme);
  return html`<button
    type="button"
    class="quiet theme"
    title=${`theme: ${chosen}`}
    aria-label=${`theme: ${chosen}`}
    onClick=${nextTheme}
  >
    ${THEME_SIGNS[chosen]}
  </button>`;
}
