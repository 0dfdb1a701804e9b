/** A list that is too long for one page: a search, which part of it is shown, and what could not be had. */
import { count } from "../format.js";
import { html, useEffect } from "../html.js";
import { useQuery } from "../query.js";
import { setQuery } from "../router.js";
import { Empty, Partial, Problem } from "./notice.js";
import { Search } from "./search.js";

const PAGE_SIZE = 100;

/** A page of what is asked for, as `useQuery` has it, and its number, which is in the address. */
export function usePages(path, query, asked, options) {
  const page = /^\d{1,7}$/.test(query.page) ? Number(query.page) : 0;
  const answer = useQuery(path, { ...asked, page, size: PAGE_SIZE }, options);
  // A list gets shorter, also for whom an address was sent to: then its last page is shown.
  const past = answer.data && !answer.stale && page > lastPage(answer.data.total);
  useEffect(() => {
    if (past) show(lastPage(answer.data.total));
  }, [past]);
  return { ...answer, page };
}

/** Ask for something else, from its first page on. */
export function narrow(changes) {
  setQuery({ ...changes, page: undefined });
}

/** `list` is of `usePages`; `filters` stand beside the search, `empty` is said of a list in which there is nothing. */
export function Paged({ title, search, query, list, filters, empty, children }) {
  const { data, error, page } = list;
  return html`<div class="page">
    <header class="page-head">
      <h1>${title}</h1>
      <${Search} label=${search} value=${query.q} onValue=${(q) => narrow({ q })} />
      ${filters}
      <${Pager} page=${page} total=${data?.total} />
    </header>
    <${Problem} error=${error} />
    <${Partial} answer=${data} />
    ${children}
    ${data?.items.length === 0 && page <= lastPage(data.total) && html`<${Empty}>${empty}<//>`}
  </div>`;
}

function Pager({ page, total }) {
  const last = lastPage(total);
  const from = total ? page * PAGE_SIZE + 1 : 0;
  const upto = Math.min(total, (page + 1) * PAGE_SIZE);
  return html`<nav class="pager" aria-label="pages">
    <span class="numbers">${total === undefined ? "" : `${count(from)}–${count(upto)} of ${count(total)}`}</span>
    <button type="button" disabled=${page <= 0} onClick=${() => show(0)} aria-label="first page">«</button>
    <button type="button" disabled=${page <= 0} onClick=${() => show(page - 1)} aria-label="previous page">‹</button>
    <button type="button" disabled=${page >= last} onClick=${() => show(page + 1)} aria-label="next page">›</button>
    <button type="button" disabled=${page >= last} onClick=${() => show(last)} aria-label="last page">»</button>
  </nav>`;
}

function lastPage(total) {
  return Math.max(0, Math.ceil((total ?? 0) / PAGE_SIZE) - 1);
}

function show(page) {
  setQuery({ page: page || undefined });
}
