// A node: what is wrong, sessions, routes, blocks, kernel, audit. Without a name the one that serves
// this page; another one is asked by that.

import { get } from "./api.js";
import { duration, facts, h, link, place, problems, replace, state, stateOf, table } from "./draw.js";

function sessions(here, peers) {
  return table("Sessions", ["Peer", "State", "Since", "AS", "#Received", "#Accepted", "#Advertised", "Why"],
    peers.map((peer) => [
      [h("b", {}, peer.bgpPeer || peer.name), h("div", { class: "quiet" }, peer.address)],
      state(stateOf(peer), peer.disabled ? "disabled" : peer.state), duration(peer.downSeconds ?? peer.sinceSeconds), peer.asn,
      h("a", { href: place(here, { table: "received", peer: peer.name }) }, peer.received), peer.accepted,
      h("a", { href: place(here, { table: "advertised", peer: peer.name }) }, peer.advertised),
      [peer.reason, peer.warning, peer.stale && "routes kept while it restarts"].filter(Boolean).map((text) => h("div", {}, text)),
    ]));
}

function kernel(kernel) {
  const routes = Object.entries(kernel.routes).map(([kind, n]) => `${n} ${kind}`).join(", ");
  const narrow = (kernel.paths || []).filter((path) => path.mtu < path.interfaceMtu);
  return facts([
    ["Phase", [kernel.phase, kernel.reason && ` (${kernel.reason})`]], ["Revision", kernel.revision], ["Routes", routes || "none"],
    ["Tunnels", kernel.tunnels.join(", ") || "none"], ["Next hops", kernel.nextHops], ["NAT", kernel.nat],
    ["Narrow paths", narrow.map((path) => `${path.mtu} to ${path.node}`).join(", ")],
  ]);
}

function audit(report) {
  const list = report.findings.map((one) => ({ code: one.code, subject: one.subject, reason: `${one.sentence} (${duration(one.ageSeconds)}${one.counts ? "" : ", settling"})`, severity: one.severity }));
  return [h("p", { class: "quiet" }, `datastore, table, kernel and interfaces compared at revision ${report.revision}`), problems(list)];
}

const routeRow = (route) => [
  link(["prefix", route.prefix], route.prefix), route.peer ?? "this node", route.nextHop, route.asPath || "–", route.localPref,
  route.status ? [route.status, (route.reason || route.refusal) && `: ${route.reason || route.refusal}`].filter(Boolean).join("") : "–",
];

/** A search of the speaker's routes, a page at a time. */
function search(here, ask, query) {
  const field = (name, label) => [h("label", { for: `routes-${name}` }, label), h("input", { id: `routes-${name}`, name, value: query.get(name) || "", spellcheck: "false" })];
  const option = (value, text) => h("option", { value, selected: query.get("table") === value }, text);
  const result = h("div", { "aria-live": "polite" });
  const rows = [];
  const show = async (after) => {
    const parameters = { table: query.get("table"), prefix: query.get("prefix"), peer: query.get("peer"), after, limit: "100" };
    if (parameters.prefix && parameters.table !== "advertised" && parameters.prefix.includes("/")) parameters.longer = "true";
    try {
      const page = await ask("routes", parameters);
      rows.push(...page.routes.map(routeRow));
      const more = page.next && h("button", { type: "button", on: { click: () => show(page.next) } }, "More");
      replace(result, rows.length ? table("Routes", ["Prefix", "From", "Next hop", "AS path", "Preference", "State"], rows) : h("p", {}, "no routes"), more);
    } catch (error) {
      replace(result, h("p", { class: "bad", role: "alert" }, error.message));
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const wanted = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value));
    location.hash = place(here, wanted);
  };
  const form = h("form", { on: { submit }, "aria-label": "Routes" },
    h("label", { for: "routes-table" }, "Table"), h("select", { id: "routes-table", name: "table" }, option("routes", "all accepted"), option("received", "received from"), option("advertised", "advertised to")),
    field("peer", "Peer"), field("prefix", "Prefix"), h("button", {}, "Search"));
  if ([...query.keys()].length) show();
  return [form, result];
}

export function node([name], query) {
  const here = name ? ["node", name] : ["node"];
  const ask = (question, parameters) => get(name ? `nodes/${encodeURIComponent(name)}/${question}` : question, parameters);
  const [head, wrong, peers, blocks, inside, found] = Array.from({ length: 6 }, () => h("div"));
  const compare = async () => {
    replace(found, h("p", { class: "quiet" }, "comparing …"));
    try {
      replace(found, audit(await ask("audit")));
    } catch (error) {
      replace(found, h("p", { class: "bad", role: "alert" }, error.message));
    }
  };
  const root = h("div", {}, head, h("h2", {}, "Problems"), wrong, h("h2", {}, "Sessions"), peers, h("h2", {}, "Routes"), search(here, ask, query),
    h("h2", {}, "Blocks"), blocks, h("h2", {}, "Kernel"), inside, h("h2", {}, "Audit"),
    h("button", { type: "button", id: "compare", on: { click: compare } }, "Compare now"), found);
  return {
    root,
    title: name ? `Node ${name}` : "Node",
    // Another node is not asked more often than somebody reads.
    calm: Boolean(name),
    async refresh() {
      const status = await ask("status");
      replace(head, h("h2", {}, status.node), facts([
        ["Version", status.version], ["Up for", duration(status.uptimeSeconds)], ["Addresses", status.addresses.join(", ")],
        ["AS", status.asn], ["BGP Identifier", status.routerId],
        ["Datastore", [status.datastore.state, ` at revision ${status.datastore.revision}`, status.datastore.reason && ` (${status.datastore.reason})`]],
        ["Out of service", status.drain],
      ]));
      replace(wrong, problems(status.problems));
      replace(peers, sessions(here, status.peers));
      replace(blocks, table("Blocks", ["Block", "State", "#In use", "#Of"], status.blocks.map((block) => [link(["prefix", block.cidr], block.cidr), block.state, block.inUse, block.size])));
      replace(inside, kernel(status.kernel));
    },
  };
}
