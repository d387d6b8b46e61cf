// What a change would do, before anybody makes it: the plans of the commands, drawn before and after.

import { get } from "./api.js";
import { facts, h, link, place, replace, state, table } from "./draw.js";
import { DRAWN, groupsOf, nameOf, picture } from "./map.js";

const MODES = [["None", "none"], ["IPIP", "IPIP Always"], ["IPIPCrossSubnet", "IPIP CrossSubnet"], ["VXLAN", "VXLAN Always"], ["VXLANCrossSubnet", "VXLAN CrossSubnet"]];
const TOPOLOGIES = [["mesh", "mesh between all nodes"], ["reflectors", "elected reflectors"]];
const NUMBERS = [["limit", "Mesh up to so many nodes"], ["reflectors", "Reflectors of a zone"], ["levels", "Levels"]];
/** Rows of a table of a large cluster. */
const ROWS = 200;

const wayOf = (kind) => kind || "no route";
const range = (numbers) => {
  const [least, most] = numbers.reduce(([a, b], n) => [Math.min(a, n), Math.max(b, n)], [Infinity, 0]);
  return least === most ? `${most}` : `${least} to ${most}`;
};

/** Two pictures with the same places, one beside the other where there is room. */
const sides = (before, after) =>
  h("div", { class: "sides" }, [["Before", before], ["After", after]].map(([name, content]) =>
    h("figure", {}, h("figcaption", {}, name), content)));

/** A zone's box; more than that of thousands of nodes nobody sees. */
function boxes(nodes, query, told) {
  return h("div", { class: "groups" }, groupsOf(nodes).map(([name, members]) => {
    const kind = ["refused", "changes"].find((kind) => members.some((node) => node.state === kind)) || "stays";
    const href = place(["changes"], { ...query, zone: name });
    return h("a", { class: `group ${kind}`, href, "data-key": `zone ${name}` }, h("b", {}, name), h("span", {}, `${members.length} nodes`),
      told(members).map((text) => h("span", {}, text)), h("span", {}, state(kind, kind === "stays" ? "nothing changes" : kind)));
  }));
}

/** The nodes of a plan as a pair of maps, or as boxes before and after where there are too many. */
function drawn(nodes, lines, query, told) {
  const shown = query.zone ? nodes.filter((node) => nameOf(node.group) === query.zone) : nodes;
  if (nodes.length > DRAWN) return [boxes(nodes, query, told)];
  const names = new Set(shown.map((node) => node.node));
  const near = lines.filter((line) => !query.zone || names.has(line.from) || names.has(line.to));
  // A role is what a node will have.
  const nodesOf = (side) => (side === "after" ? nodes : nodes.map((node) => ({ ...node, role: "" })));
  const side = (name, of) => picture(nodesOf(of), near.filter((line) => line[of]).map((line) => ({ ...line, ...line[of] })), undefined,
    { name: `${name}: nodes`, places: lines, href: (node) => place(["map", nameOf(node.group), node.node]) });
  return [sides(side("Before", "before"), side("After", "after"))];
}

const rowsOf = (nodes, query, row) => {
  const order = ["refused", "changes", "stays"];
  const of = nodes.filter((node) => !query.zone || nameOf(node.group) === query.zone);
  const rows = of.sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state)).slice(0, ROWS).map(row);
  return { rows, omitted: of.length - rows.length };
};

const omitted = (count) => count > 0 && h("p", { class: "quiet" }, `${count} more nodes are not listed`);
const legend = (...parts) => h("p", { class: "legend" }, parts);

/** Why it would be refused, as text. */
function findings(list, count, text) {
  if (count === 0) return h("p", {}, state("good", "nothing speaks against it"));
  return [h("p", {}, state("error", `it would be refused: ${count} ${count === 1 ? "finding" : "findings"}`)),
    h("ul", { class: "plain" }, list.map((one) => h("li", { class: "error" }, text(one)))),
    count > list.length && h("p", { class: "quiet" }, `and ${count - list.length} more`)];
}

const countsOf = (routes) => routes.map((way) => h("div", {}, `${way.count} ${wayOf(way.from)} → ${wayOf(way.to)}`));

/** The ways between two nodes, there and back, as one line. */
function pairs(ways) {
  const lines = new Map();
  for (const { from, to, routes } of ways) {
    const ends = from < to ? [from, to] : [to, from];
    const key = ends.join(" ");
    const line = lines.get(key) || { from: ends[0], to: ends[1], was: new Map(), is: new Map(), changed: 0 };
    for (const way of routes) {
      line.was.set(wayOf(way.from), (line.was.get(wayOf(way.from)) || 0) + way.count);
      line.is.set(wayOf(way.to), (line.is.get(wayOf(way.to)) || 0) + way.count);
      if (way.from !== way.to) line.changed += way.count;
    }
    lines.set(key, line);
  }
  const told = (kinds) => [...kinds].map(([kind, n]) => `${n} ${kind}`).join(", ");
  return [...lines.values()].map((line) => {
    const side = (kinds, changed) => {
      const kind = kinds.has("no route") ? "none" : ["vxlan", "ipip"].find((word) => kinds.has(word)) || "direct";
      return { look: `way-${kind}${changed ? " changed" : ""}`, state: changed ? "appears" : "stays", label: `${line.from} – ${line.to}: routes ${told(kinds)}` };
    };
    return { ...line, before: side(line.was, false), after: side(line.is, line.changed > 0), told: [told(line.was), told(line.is)] };
  });
}

function modeView(plan, query) {
  const nodes = plan.nodes.map((node) => {
    const mtu = node.workloadMtu.before !== node.workloadMtu.after;
    const changes = node.devicesCome.length || node.devicesGo.length || node.routes.length || mtu;
    const kind = node.stranded.length ? "refused" : changes ? "changes" : "stays";
    return { ...node, state: kind, label: `node ${node.node}: ${kind === "stays" ? "nothing changes" : kind}` };
  });
  const lines = pairs(plan.ways);
  const sum = (members) => {
    const counts = new Map();
    for (const way of members.flatMap((node) => node.routes)) {
      const key = `${wayOf(way.from)} → ${wayOf(way.to)}`;
      counts.set(key, (counts.get(key) || 0) + way.count);
    }
    return [...counts].map(([key, n]) => `${n} routes ${key}`);
  };
  const { rows, omitted: more } = rowsOf(nodes, query, (node) => [
    link(["map", nameOf(node.group), node.node], node.node), state(node.state), countsOf(node.routes),
    node.devicesCome.map((device) => h("div", {}, `${device.name}, MTU ${device.mtu}`)), node.devicesGo.join(", "),
    node.workloadMtu.before === node.workloadMtu.after ? node.workloadMtu.after : `${node.workloadMtu.before} → ${node.workloadMtu.after}`,
  ]);
  const changed = lines.filter((line) => line.changed > 0);
  return [
    h("h2", {}, plan.change), facts([["Revision", plan.revision], ["Routes that change", sum(nodes).join("; ") || "none"]]),
    findings(plan.refused, plan.refusedCount, (one) => [h("b", {}, one.node), " ", one.reason]),
    drawn(nodes, lines, query, sum),
    nodes.length <= DRAWN && legend(h("span", {}, "direct: thin"), h("span", {}, "VXLAN: dashed"), h("span", {}, "IPIP: dotted"),
      state("down", "no route: thick, long dashes"), state("appears", "after the change: thick"), ["refused", "changes", "stays"].map((kind) => state(kind))),
    h("h2", {}, "Nodes"), table("Nodes", ["Node", "Change", "Routes", "Devices that come", "Devices that go", "MTU of new pods"], rows), omitted(more),
    nodes.length <= DRAWN && [h("h2", {}, "Pairs of nodes"), changed.length === 0 ? h("p", {}, "none changes")
      : table("Pairs", ["Nodes", "Routes before", "Routes after"], changed.slice(0, ROWS).map((line) => [`${line.from} – ${line.to}`, ...line.told]))],
  ];
}

function topologyView(plan, query) {
  const cut = new Set(plan.missing.map((one) => one.node));
  const nodes = plan.nodes.map((node) => {
    const kind = cut.has(node.node) ? "refused" : node.appear || node.disappear ? "changes" : "stays";
    return { ...node, state: kind, label: `node ${node.node}: ${node.before} sessions before, ${node.after} after${node.role ? `, ${node.role}` : ""}` };
  });
  const lines = plan.sessions.map((line) => {
    const side = { look: line.change, state: line.change, label: `session ${line.from} – ${line.to}: ${line.change}` };
    return { ...line, before: line.change !== "appears" && side, after: line.change !== "disappears" && side };
  });
  const { rows, omitted: more } = rowsOf(nodes, query, (node) => [
    link(["map", nameOf(node.group), node.node], node.node), state(node.state), node.before, node.after, node.appear, node.disappear, node.role,
  ]);
  const counts = (members) => [`sessions of a node: ${range(members.map((n) => n.before))} before, ${range(members.map((n) => n.after))} after`];
  return [
    h("h2", {}, plan.change), facts([
      ["Revision", plan.revision], ["Sessions", `${plan.sessionsBefore} before, ${plan.sessionsAfter} after`],
      ["At most at a node", `${plan.mostBefore} before, ${plan.mostAfter} after`],
      ["Passwords", plan.assumedPasswords.map((one) => h("div", {}, `${one.key} of ${one.name} is taken to be on every node that needs it`))],
    ].filter(([name, value]) => name !== "Passwords" || value.length)),
    findings(plan.missing, plan.missingCount, (one) => `${one.node} does not learn ${one.of}'s ${one.family.replace("ip", "IP")} routes`),
    plan.missingNow > 0 && h("p", {}, `${plan.missingNow} of these pairs have no path now`),
    drawn(nodes, lines, query, counts),
    nodes.length <= DRAWN && legend(state("disappears", "session that disappears: thick, dashed"), state("appears", "session that appears: thick"),
      state("stays", "session that stays: thin"), ["refused", "changes", "stays"].map((kind) => state(kind))),
    h("h2", {}, "Nodes"), table("Nodes", ["Node", "Change", "#Before", "#After", "#Appear", "#Disappear", "Role"], rows), omitted(more),
  ];
}

const select = (name, label, options, chosen) => [h("label", { for: `plan-${name}` }, label),
  h("select", { id: `plan-${name}`, name, "data-key": name }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)))];

export function changes(_words, parameters) {
  const query = Object.fromEntries(parameters);
  const { zone, ...asked } = query;
  const [forms, result] = [h("div"), h("div", { "aria-live": "polite" })];
  const submit = (event) => {
    event.preventDefault();
    const wanted = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value));
    // The same question again is asked again.
    if (location.hash === place(["changes"], wanted)) plan();
    else location.hash = place(["changes"], wanted);
  };
  const choose = (pools) => {
    const names = pools.map((pool) => [pool.name, `${pool.name} (${pool.cidr}, ${pool.encapsulation})`]);
    if (query.pool && !names.some(([name]) => name === query.pool)) names.push([query.pool, query.pool]);
    const field = ([name, label]) => [h("label", { for: `plan-${name}` }, label), h("input", { id: `plan-${name}`, name, value: query[name] || "", inputmode: "numeric", size: 4, "data-key": name })];
    replace(forms,
      h("form", { on: { submit }, id: "plan-of-mode", "aria-label": "Encapsulation of a pool" }, select("pool", "Pool", names, query.pool), select("mode", "Encapsulation", MODES, query.mode), h("button", {}, "Plan")),
      h("form", { on: { submit }, id: "plan-of-topology", "aria-label": "Topology" }, select("topology", "Topology", TOPOLOGIES, query.topology), NUMBERS.map(field), h("button", {}, "Plan")));
  };
  const plan = async (isFirst) => {
    replace(result, h("p", { class: "quiet" }, "planning …"));
    try {
      const content = asked.topology ? topologyView(await get("plan/topology", asked), query) : modeView(await get("plan/mode", asked), query);
      replace(result, zone && h("p", {}, h("a", { href: place(["changes"], asked) }, "All zones"), ` / ${zone}`), content);
    } catch (error) {
      if (isFirst && error.status === 401) throw error;
      replace(result, h("p", { class: "bad", role: "alert" }, error.message));
    }
  };
  let begun = false;
  const root = h("div", {}, h("h2", {}, "What would a change do?"),
    h("p", { class: "quiet" }, "Nothing is written: a plan is made of what the datastore holds now. To make the change: caracal mode apply, caracal topology apply."), forms, result);
  return {
    root,
    async refresh() {
      // A plan stays as it was asked for, and costs each node's plan twice: it is not made again by itself.
      if (begun) return;
      choose((await get("pools")).pools);
      begun = true;
      if (Object.keys(asked).length) await plan(true);
    },
  };
}
