// A destination from the datastore to this node's kernel, with the rule by which each path won or
// lost; and what the kernels of the other nodes do with it, when they are asked.

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

/** Nodes that are asked at a time, and at most: a console answers 25 questions a second. */
const AT_A_TIME = 4;
const MOST = 80;

/** What a node does with the destination, as a row. */
async function rowOf(node, destination) {
  try {
    const { kernel, mode, inStep, bgp } = await get(`nodes/${encodeURIComponent(node)}/explain`, { destination });
    const best = bgp.paths.find((path) => path.status === "best");
    const why = best ? best.sentence : bgp.paths.map((path) => path.sentence).join("; ") || "no path";
    return [link(["node", node], node), state(kernel && inStep ? "good" : "warning", kernel ? kernel.route : "no route"), mode, why];
  } catch (error) {
    return [node, state("unknown", "not known"), "–", error.message];
  }
}

/** Asks each node, a few at a time, and shows what has been answered. */
async function askEach(destination, shown) {
  const { nodes } = await get("nodes");
  const names = nodes.filter((one) => one.state !== "foreign").map((one) => one.node).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const asked = names.slice(0, MOST);
  const rows = [];
  const show = () => {
    const left = names.length - asked.length;
    const text = rows.filter(Boolean).length < asked.length ? `asking ${asked.length} nodes …` : left ? `${left} more nodes are not asked` : "";
    replace(shown, text && h("p", { class: "quiet" }, text), table("Each node", ["Node", "Kernel", "Mode", "Why"], rows.filter(Boolean)));
  };
  let next = 0;
  const work = async () => {
    while (next < asked.length) {
      const at = next++;
      rows[at] = await rowOf(asked[at], destination);
      show();
    }
  };
  show();
  await Promise.all(Array.from({ length: AT_A_TIME }, work));
}

/** What each node's kernel does with it, when somebody wants to know. */
function each(destination) {
  const shown = h("div", { "aria-live": "polite" });
  const click = async () => {
    try {
      await askEach(destination, shown);
    } catch (error) {
      replace(shown, h("p", { class: "bad", role: "alert" }, error.message));
    }
  };
  return h("div", {}, h("h2", {}, "Each node"), h("button", { type: "button", id: "each", on: { click } }, "Ask each node"), shown);
}

export function prefix([destination]) {
  const input = document.getElementById("destination");
  if (destination) input.value = destination;
  const own = h("div");
  const root = h("div", {}, own, destination && each(destination));
  return {
    root,
    calm: true,
    title: destination ? `Prefix ${destination}` : "Prefix",
    async refresh() {
      if (!destination) {
        replace(own, h("h2", {}, "Where does it go?"), h("p", {}, "Type an address or a prefix above."));
        return;
      }
      const answer = await get("explain", { destination });
      replace(own, h("h2", {}, `${answer.destination} from ${answer.node}`), steps(answer),
        h("h2", {}, "Paths"), answer.bgp.paths.length ? paths(answer.bgp.paths) : h("p", {}, "none"),
        h("h2", {}, "Problems that name it"), problems(answer.problems),
        h("h2", {}, "Revisions"), facts(answer.revisions.map((one) => [one.stage, `${one.revision} (${one.what})`])));
    },
  };
}
