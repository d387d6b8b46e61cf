// A destination from the datastore to this node's kernel, with the rule by which each path won or
// lost.

import { get } from "./api.js";
import { facts, h, link, problems, replace, state, table } from "./draw.js";

const step = (good, title, ...content) => h("li", { class: good ? "good" : "warning" }, h("b", {}, title), " ", content);

function steps(answer) {
  const { pool, block, allocation, bgp, kernel } = answer;
  const best = bgp.paths.find((path) => path.status === "best");
  const holder = allocation && [allocation.handle, ...Object.entries(allocation.attributes).map(([name, value]) => `${name} ${value}`)].filter(Boolean).join(", ");
  return h("ol", { class: "steps" },
    step(pool, "Pool", pool ? [link(["pools", pool.name], pool.name), ` ${pool.cidr}, IPIP ${pool.ipip}, VXLAN ${pool.vxlan}`] : "no pool holds it"),
    step(block, "Block", block ? `${block.cidr} of ${block.affinity || "nobody"}` : "no block holds it"),
    step(true, "Owner", answer.owner || "nobody", holder && h("div", { class: "quiet" }, holder)),
    step(best || answer.source !== "none", "BGP", best ? `best of ${bgp.paths.length}: ${best.prefix} from ${best.peer || "this node"} by ${best.nextHop || "itself"}` : `${bgp.paths.length} paths, none is used`),
    step(answer.planned || !answer.skipped, "Plan", answer.planned || answer.skipped || "no route of the agent's", answer.mode && ` (${answer.mode}, because of: ${answer.source})`),
    step(kernel && answer.inStep, "Kernel", kernel ? [kernel.route, ` (${kernel.owner})`] : "no route",
      kernel?.devices.map((device) => h("div", {}, state(device.up ? "up" : "down", `${device.name}, MTU ${device.mtu}`))),
      kernel?.vtep && h("div", {}, kernel.vtep), h("div", { class: "quiet" }, answer.inStep ? "as planned" : "not as planned")));
}

const paths = (list) =>
  table("Paths", ["Prefix", "From", "Next hop", "AS path", "#Preference", "Why"], list.map((path) => [
    path.prefix, path.peer ?? "this node", path.nextHop, path.asPath || "–", path.localPref,
    state(path.status === "best" ? "good" : "notice", path.sentence || path.status),
  ]));

export function prefix([destination]) {
  const input = document.getElementById("destination");
  if (destination) input.value = destination;
  const root = h("div");
  return {
    root,
    calm: true,
    title: destination ? `Prefix ${destination}` : "Prefix",
    async refresh() {
      if (!destination) {
        replace(root, h("h2", {}, "Where does it go?"), h("p", {}, "Type an address or a prefix above."));
        return;
      }
      const answer = await get("explain", { destination });
      replace(root, h("h2", {}, `${answer.destination} from ${answer.node}`), steps(answer),
        h("h2", {}, "Paths"), answer.bgp.paths.length ? paths(answer.bgp.paths) : h("p", {}, "none"),
        h("h2", {}, "Problems that name it"), problems(answer.problems),
        h("h2", {}, "Revisions"), facts(answer.revisions.map((one) => [one.stage, `${one.revision} (${one.what})`])));
    },
  };
}
