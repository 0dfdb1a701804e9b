/** An address that names no page. */
import { Empty } from "../components/notice.js";
import { html } from "../html.js";
import { href } from "../router.js";

export function Nowhere() {
  return html`<div class="page">
    <h1>No such page</h1>
    <${Empty}>The console has no page at this address. <a href=${href(["overview"])}>Go to the overview</a>.<//>
  </div>`;
}
