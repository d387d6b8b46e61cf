// The pools: how full they are, and who has their blocks.

import { get } from "./api.js";
import { bar, facts, h, link, percent, place, replace, s, table } from "./draw.js";

function cell(block) {
  const part = (count) => (block.size ? (10 * (count || 0)) / block.size : 0);
  const [used, lent] = [part(block.inUse), part(block.borrowed)];
  const text = `${block.cidr}: ${block.inUse} of ${block.size} in use, ${block.node || block.owner || "nobody's"}${block.borrowed ? `, ${block.borrowed} borrowed by others` : ""}`;
  return h("a", { class: "cell", href: place(["prefix", block.cidr]), title: text, "aria-label": text, "data-key": block.cidr },
    s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { x: 0, y: 10 - used, width: 10, height: used }), lent > 0 && s("rect", { class: "lent", x: 5, y: 10 - used, width: 5, height: lent })));
}

/** Who has how many addresses of whose blocks, the most first. */
function borrowers(list) {
  const most = Math.max(...list.map((one) => one.count));
  return [h("h3", {}, "Who borrows"), table("Who borrows", ["Node", "Of", "#Addresses", ""],
    list.map((one) => [one.node, one.from || "nobody", one.count, bar(one.count / most, `${one.count} addresses`, "bar lent")]))];
}

function nodes(blocks) {
  const by = new Map();
  for (const block of blocks) {
    const name = block.node || block.owner || "nobody";
    const sum = by.get(name) || { blocks: 0, inUse: 0, size: 0 };
    by.set(name, { blocks: sum.blocks + 1, inUse: sum.inUse + block.inUse, size: sum.size + block.size });
  }
  const rows = [...by].sort(([, a], [, b]) => b.inUse - a.inUse).slice(0, 100);
  return table("Blocks by node", ["Node", "#Blocks", "#In use", "#Of"], rows.map(([name, sum]) => [name, sum.blocks, sum.inUse, sum.size]));
}

function one(pool, whole) {
  const used = pool.inUse / pool.addresses;
  const taken = pool.blockCount / pool.blocksMax;
  return h("section", { "aria-label": `Pool ${pool.name}` },
    h("h2", {}, whole ? pool.name : link(["pools", pool.name], pool.name), " ", h("span", { class: "quiet" }, pool.cidr)),
    facts([
      ["Addresses", [bar(used, `${percent(used)} of the addresses are in use`), `${pool.inUse} of ${pool.addresses} in use (${percent(used)})${pool.borrowed ? `, ${pool.borrowed} borrowed` : ""}`]],
      ["Blocks", [bar(taken, `${percent(taken)} of the blocks are taken`), `${pool.blockCount} of ${pool.blocksMax} taken (${percent(taken)})`]],
      ["Encapsulation", pool.encapsulation], ["NAT outgoing", pool.natOutgoing ? "yes" : "no"], ["Disabled", pool.disabled && "no new addresses"],
    ]),
    h("div", { class: "cells", role: "group", "aria-label": "Blocks, as full as they are drawn" }, (whole ? pool.blocks : pool.blocks.slice(0, 256)).map(cell)),
    pool.borrowers?.length > 0 && borrowers(whole ? pool.borrowers : pool.borrowers.slice(0, 10)),
    pool.blocksOmitted > 0 && h("p", { class: "quiet" }, `${pool.blocksOmitted} more blocks are not drawn`),
    whole && nodes(pool.blocks));
}

export function pools([name]) {
  const root = h("div");
  return {
    root,
    title: name ? `Pool ${name}` : "Pools",
    async refresh() {
      const all = (await get("pools")).pools;
      const shown = name ? all.filter((pool) => pool.name === name) : all;
      replace(root, shown.length ? shown.map((pool) => one(pool, Boolean(name))) : h("p", {}, name ? "there is no such pool" : "there are no pools"));
    },
  };
}
