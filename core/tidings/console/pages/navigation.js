/** The pages: name, title, the key after `g`, and what shows them. */
import { Applications } from "./views/applications.js";
import { Audit } from "./views/audit.js";
import { Caravans } from "./views/caravans.js";
import { Collection } from "./views/collection.js";
import { FlowPage } from "./views/flow.js";
import { Flows } from "./views/flows.js";
import { Members } from "./views/members.js";
import { Nowhere } from "./views/nowhere.js";
import { Overview } from "./views/overview.js";
import { Pipelines } from "./views/pipelines.js";
import { StreamPage } from "./views/stream.js";
import { Streams } from "./views/streams.js";
import { Thialfi } from "./views/thialfi.js";

export const PAGES = [
  { name: "overview", title: "Overview", key: "o", view: Overview },
  { name: "flows", title: "Flows", key: "f", view: Flows, one: FlowPage },
  { name: "streams", title: "Streams", key: "s", view: Streams, one: StreamPage },
  { name: "applications", title: "Applications", key: "a", view: Applications },
  { name: "members", title: "Publishers & subscribers", short: "Publishers", key: "p", view: Members },
  { name: "caravans", title: "Caravans", key: "c", view: Caravans },
  { name: "pipelines", title: "Pipelines", key: "l", view: Pipelines },
  { name: "thialfi", title: "Thialfi", key: "t", view: Thialfi },
  { name: "gc", title: "Collection", key: "g", view: Collection },
  { name: "audit", title: "Audit", key: "u", view: Audit },
];

const NOWHERE = { name: null, title: "No such page", view: Nowhere };

/** The page of a route, what shows it, and its title. */
export function pageOf({ names }) {
  const page = PAGES.find(({ name }) => name === (names[0] ?? "overview")) ?? NOWHERE;
  const rest = page.name === names[0] ? names.slice(1) : [];
  if (page.one && rest.length) return { page, view: page.one, rest, title: `${rest.join("/")} · ${page.title}` };
  return { page, view: page.view, rest, title: page.title };
}
