// Elements of the page. Whatever a node says goes into the document as text nodes and as values of
// attributes that hold no programs.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") {
      for (const [event, action] of Object.entries(value)) element.addEventListener(event, action);
    } else if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children.flat(9)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Puts new content in the place of the old; what had the focus has it again. */
export function replace(root, ...content) {
  const key = root.contains(document.activeElement) && document.activeElement.dataset.key;
  root.replaceChildren(...content.flat(9).filter(Boolean));
  if (key) root.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** A place of the page: `link(["prefix", "10.0.0.0/8"])`. */
export const place = (words, query) => {
  const text = new URLSearchParams(query || {}).toString();
  return `#${words.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
};

export const link = (words, ...children) => {
  const href = place(words);
  return h("a", { href, "data-key": href }, ...children);
};

/** States have a sign of their own: colour alone says nothing. */
export const SIGNS = {
  up: "●", healthy: "●", good: "●", down: "▲", degraded: "▲", warning: "▲", silent: "✖", error: "✖",
  unknown: "◆", stopped: "■", disabled: "■", foreign: "○", notice: "○",
  appears: "✚", disappears: "−", stays: "○", changes: "●", refused: "✖",
};

export const state = (kind, text) => h("span", { class: kind }, `${SIGNS[kind] || "◆"} ${text || kind}`);

export const stateOf = (session) =>
  session.state === "Established" ? "up" : session.disabled ? "disabled" : "down";

/** Columns that begin with # hold numbers. */
export function table(caption, columns, rows) {
  const kind = (at) => (columns[at].startsWith("#") ? { class: "number" } : {});
  const head = columns.map((name, at) => h("th", { scope: "col", ...kind(at) }, name.replace("#", "")));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td", kind(at), cell ?? "–"))));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export const facts = (pairs) =>
  h("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const problems = (list) =>
  list.length === 0
    ? h("p", {}, state("good", "nothing is wrong"))
    : h("ul", { class: "plain" }, list.map((problem) =>
        h("li", { class: problem.severity || "warning" },
          state(problem.severity || "warning", problem.code), " ", h("b", {}, problem.subject),
          h("div", {}, problem.reason),
          problem.remedy && h("div", { class: "remedy" }, problem.remedy))));

/** A bar from 0 to 1. */
export const bar = (part, label, look) => {
  const width = Math.max(0, Math.min(1, part)) * 100;
  return s("svg", { class: look || (part > 0.85 ? "bar tight" : "bar"), viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { x: 0, y: 0, width, height: 10 }));
};

export const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}
