// The stacks of all workers as one call tree, requested by a button or by the address: #/incidents?show=stacks.

import { post } from "../base/api.js";
import { byId, fill, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { clock, count } from "../base/format.js";
import { replace, route } from "../base/router.js";
import { on } from "../base/store.js";
import { stackTree } from "./stack_tree.js";

async function ask() {
  setText(byId("stacks-about"), "requested …");
  try {
    /** @type {Api.Stacks} */
    const tree = await post("/job/stacks");
    setText(byId("stacks-about"), `${count(Object.keys(tree.states).length)} ranks at ${clock(tree.at)}, generation ${tree.generation}`);
    fill(byId("stacks"), stackTree(tree));
  } catch (error) {
    setText(byId("stacks-about"), messageOf(error));
  }
}

export function startStacks() {
  byId("stacks-ask").addEventListener("click", ask);
  on("route", () => {
    if (route.view !== "incidents" || route.query.show !== "stacks") return;
    const { show: _, ...others } = route.query;
    replace(route.id, others); // once: not again with every change of the address
    ask();
    byId("stacks-ask").scrollIntoView({ block: "center" });
  });
  on("job", () => {
    fill(byId("stacks"));
    setText(byId("stacks-about"), "");
  });
}
