// The map: nodes and the sessions between them, and what has changed while this page was open.

import { get } from "./api.js";
import { SIGNS, duration, h, link, place, replace, s, state, table } from "./draw.js";

export const DRAWN = 100;
const NAMED = 40;
/** The worst first. */
const ORDER = ["silent", "degraded", "unknown", "stopped", "foreign", "healthy"];

const worst = (nodes) => ORDER.find((kind) => nodes.some((node) => node.state === kind)) || "unknown";
export const nameOf = (group) => group || "no zone";
const isReflector = (node) => (node.role || "").includes("reflector");
const beside = (node) => [node.group, node.rack].filter(Boolean).join(" / ");

/** Each state has a shape of its own. */
function shape(kind, x, y, size) {
  const points = (list) => list.map(([a, b]) => `${x + a * size},${y + b * size}`).join(" ");
  const look = ["foreign", "stopped", "stays"].includes(kind) ? "shape hollow" : "shape";
  switch (kind) {
    case "healthy":
    case "foreign":
    case "changes":
    case "stays":
      return s("circle", { cx: x, cy: y, r: size, class: look });
    case "degraded":
      return s("polygon", { points: points([[0, -1.2], [1.1, 0.9], [-1.1, 0.9]]), class: look });
    case "silent":
    case "refused":
      return s("polygon", { points: points([[-1, -1], [0, -0.3], [1, -1], [0.3, 0], [1, 1], [0, 0.3], [-1, 1], [-0.3, 0]]), class: look });
    case "unknown":
      return s("polygon", { points: points([[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]]), class: look });
    default:
      return s("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, class: look });
  }
}

/** Whoever is in one rack, or in one zone that has a name, as an arc inside the circle. */
function arcs(order, [width, height], [across, down]) {
  const runs = [];
  order.forEach((node, n) => {
    const last = runs[runs.length - 1];
    if (last && last.name === beside(node)) last.end = n;
    else runs.push({ name: beside(node), begin: n, end: n });
  });
  if (runs.length < 2) return [];
  const at = (n, part) => {
    const angle = (2 * Math.PI * n) / order.length - Math.PI / 2;
    return [width / 2 + across * part * Math.cos(angle), height / 2 + down * part * Math.sin(angle)];
  };
  return runs.filter((run) => run.name).map(({ name, begin, end }) => {
    const large = 2 * (end - begin + 0.7) > order.length ? 1 : 0;
    const d = ["M", at(begin - 0.35, 0.88), "A", across * 0.88, down * 0.88, 0, large, 1, at(end + 0.35, 0.88)].flat().join(" ");
    const [x, y] = at((begin + end) / 2, 0.74);
    return s("g", { class: "arc" }, s("path", { d }, s("title", {}, nameOf(name))), runs.length <= 12 && s("text", { x, y, "text-anchor": "middle" }, nameOf(name).slice(0, 24)));
  });
}

/**
 * Nodes in a circle, those of a zone side by side; who is outside in a smaller one. `about`: what the picture is called,
 * what a node leads to, and what a line says of itself, where it is not the cluster as it is now.
 */
export function picture(nodes, sessions, here, about = {}) {
  const [width, height] = [640, 460];
  const places = new Map();
  const circle = (names, across, down) => names.forEach((name, n) => {
    const angle = (2 * Math.PI * n) / Math.max(1, names.length) - Math.PI / 2;
    places.set(name, { x: width / 2 + across * Math.cos(angle), y: height / 2 + down * Math.sin(angle) });
  });
  const key = (node) => `${beside(node)} ${node.node}`;
  const order = [...nodes].sort((a, b) => key(a).localeCompare(key(b), undefined, { numeric: true }));
  const outside = [...new Set((about.places || sessions).map((line) => line.to))].filter((name) => !nodes.some((n) => n.node === name));
  circle(order.map((node) => node.node), 230, 180);
  circle(outside, outside.length > 1 ? 80 : 0, outside.length > 1 ? 60 : 0);
  const ranks = ["stays", "up", "disabled", "unknown", "down", "disappears", "appears"];
  const drawn = [...sessions].sort((a, b) => ranks.indexOf(a.state) - ranks.indexOf(b.state));
  const lines = drawn.flatMap((line) => {
    const [a, b] = [places.get(line.from), places.get(line.to)];
    const label = line.label || `session ${line.from} – ${line.to}: ${line.state}`;
    return a && b ? [s("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: line.look || line.state, "data-session": `${line.from} ${line.to}` }, s("title", {}, label))] : [];
  });
  const label = (name, at) => {
    const side = at.x < width / 2 - 20 ? "end" : at.x > width / 2 + 20 ? "start" : "middle";
    const x = at.x + (side === "end" ? -14 : side === "start" ? 14 : 0);
    const y = at.y + (side === "middle" ? (at.y < height / 2 ? -16 : 26) : 4);
    return s("text", { x, y, "text-anchor": side }, name.length > 24 ? `${name.slice(0, 23)}…` : name);
  };
  const marks = order.map((node) => {
    const at = places.get(node.node);
    const text = node.label || `node ${node.node}: ${node.state}${isReflector(node) ? `, ${node.role}` : ""}`;
    const size = nodes.length > NAMED ? 6 : 9;
    const ring = isReflector(node) && s("circle", { cx: at.x, cy: at.y, r: size + 5, class: "ring" });
    const content = [shape(node.state, at.x, at.y, size), ring, s("title", {}, text), nodes.length <= NAMED && label(node.node, at)];
    const href = about.href ? about.href(node) : node.node === here ? place(["node"]) : place(["map", nameOf(node.group), node.node]);
    return s("a", { href, class: node.state, "aria-label": text, "data-key": `${about.name || "map"} ${node.node}`, "data-node": node.node }, content);
  });
  const others = outside.map((name) => {
    const at = places.get(name);
    return s("g", { class: "foreign" }, shape("router", at.x, at.y, 7), label(name, at));
  });
  return s("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": about.name || "Nodes and sessions" }, lines, arcs(order, [width, height], [230, 180]), marks, others);
}

const legend = () =>
  h("p", { class: "legend" }, ORDER.map((kind) => state(kind)), state("up", "session up"), state("down", "session down (dashed, thick)"), state("unknown", "session not known (dotted)"), h("span", {}, "◎ reflector (a ring)"));

export function groupsOf(nodes) {
  const groups = new Map();
  for (const node of nodes) {
    const name = nameOf(node.group);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(node);
  }
  return [...groups].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
}

const sessionsOf = (node) => {
  const counts = node.status?.sessions || {};
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  return node.status ? `${counts.Established || 0} of ${all}` : "–";
};

const wrongOf = (node) => [
  ...Object.entries(node.status?.problems || {}).map(([code, n]) => (n > 1 ? `${code} ×${n}` : code)),
  ...(node.status?.down || []).map((down) => `${down.peer} ${down.state}${down.reason ? `: ${down.reason}` : ""}`),
  ...(node.status?.omitted ? [`and ${node.status.omitted} more`] : []),
];

const tableOf = (nodes, here) =>
  table("Nodes", ["Node", "State", "Role", "Seen", "Sessions", "Addresses", "Version", "What is wrong"],
    nodes.map((node) => [
      node.node === here ? link(["node"], node.node) : node.status?.console ? link(["node", node.node], node.node) : node.node, state(node.state), node.role || "–", duration(node.lastSeenSeconds),
      sessionsOf(node), (node.addresses || []).join(", "), node.status?.version, wrongOf(node).map((text) => h("div", {}, text)),
    ]));

function groups(nodes) {
  return h("div", { class: "groups" }, groupsOf(nodes).map(([name, members]) => {
    const kind = worst(members);
    const bad = members.filter((node) => ["silent", "degraded"].includes(node.state)).length;
    const reflectors = members.filter(isReflector).length;
    return h("a", { class: `group ${kind}`, href: place(["map", name]), "data-key": name }, h("b", {}, name),
      h("span", {}, `${members.length} nodes${reflectors ? `, ${reflectors} reflectors` : ""}`), h("span", {}, state(kind, bad ? `${bad} to look at` : kind)));
  }));
}

/** Many nodes of a zone: a sign for each. */
const crowd = (nodes) =>
  h("div", { class: "crowd", role: "group", "aria-label": "Nodes" }, nodes.map((node) => {
    const text = `${node.node}: ${node.state}`;
    return h("a", { class: node.state, href: place(["map", nameOf(node.group), node.node]), title: text, "aria-label": text }, SIGNS[node.state]);
  }));

const told = [];

/** Keeps an event for the list of the page. */
export function remember(kind, event) {
  const words = {
    session: () => `session ${event.peer}: ${event.before ? `${event.before} → ` : ""}${event.state}${event.reason ? ` (${event.reason})` : ""}`,
    problem: () => `problem ${event.change}: ${event.code} ${event.subject}`,
    datastore: () => `datastore ${event.state}`,
    routes: () => `routes of ${event.peer}: received ${event.before.received} → ${event.now.received}`,
  };
  if (!words[kind]) return;
  told.unshift({ at: new Date(event.at).toLocaleTimeString(), text: words[kind]() });
  told.length = Math.min(told.length, 20);
}

const changes = () => [
  h("h2", {}, "What changed while this page was open"),
  told.length === 0 ? h("p", { class: "quiet" }, "nothing") : h("ul", { class: "plain", role: "log" }, told.map((e) => h("li", {}, h("span", { class: "quiet" }, e.at), " ", e.text))),
];

export function map([group, node]) {
  const root = h("div");
  return {
    root,
    title: group ? `Map: ${group}` : "Map",
    async refresh() {
      const all = await get("nodes");
      let nodes = group ? all.nodes.filter((one) => nameOf(one.group) === group) : all.nodes;
      if (node) nodes = nodes.filter((one) => one.node === node);
      const names = new Set(nodes.map((one) => one.node));
      const sessions = all.sessions.filter((line) => !group || names.has(line.from) || names.has(line.to));
      const bad = nodes.filter((one) => ["silent", "degraded"].includes(one.state));
      const title = h("h2", {}, group ? [link(["map"], "All nodes"), ` / ${group}${node ? ` / ${node}` : ""}`] : `${nodes.length} nodes`);
      const shown = nodes.length > DRAWN
        ? [group ? crowd(nodes) : groups(nodes), legend(), bad.length > 0 && [h("h2", {}, "To look at"), tableOf(bad.slice(0, DRAWN), all.node)]]
        : [!node && picture(nodes, sessions, all.node), !node && legend(), tableOf(nodes, all.node)];
      replace(root, title, shown, changes());
    },
  };
}
