// The page as a whole: which view is shown, and when it asks again.

import { follow, get, keepToken } from "./api.js";
import { h, place, replace, state, stateOf } from "./draw.js";
import { map, remember } from "./map.js";
import { node } from "./node.js";
import { pools } from "./pools.js";
import { prefix } from "./prefix.js";

/** A view whose script is fetched when somebody opens it. */
const changes = (words, query) => {
  const root = h("div");
  let view;
  const refresh = async () => {
    if (!view) {
      view = (await import("./changes.js")).changes(words, query);
      root.append(view.root);
    }
    await view.refresh();
  };
  return { root, title: "Changes", calm: true, refresh };
};

const VIEWS = { map, node, prefix, pools, changes };
/** Shortest time between two looks, at what costs the node much, and the time between two without a cause. */
const SPACING = 500;
const CALM = 5000;
const PERIOD = 10000;

const main = document.getElementById("main");
const summary = document.getElementById("summary");
let view;
let live = false;
let timer;
let looking = false;
let again = false;
let last = 0;

function askForToken(reason) {
  const input = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    keepToken(input.value);
    open();
  };
  replace(main, h("h2", {}, "A token is needed"), h("p", {}, reason),
    h("form", { on: { submit } }, h("label", { for: "token" }, "Token"), input, h("button", {}, "Go on")));
  input.focus();
}

async function summarise() {
  const status = await get("status");
  document.getElementById("name").textContent = status.node;
  const up = status.peers.filter((peer) => stateOf(peer) === "up").length;
  const wrong = status.problems.length;
  replace(summary,
    state(up === status.peers.length ? "up" : "down", `sessions ${up} of ${status.peers.length}`), " · ",
    state(wrong ? "warning" : "good", wrong === 1 ? "1 problem" : `${wrong} problems`), " · ",
    h("span", {}, `datastore ${status.datastore.state}`), " · ", state(live ? "up" : "unknown", live ? "live" : "not live"));
}

async function look() {
  // Somebody types a token.
  if (document.getElementById("token")) return;
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  last = Date.now();
  const shown = view;
  try {
    await Promise.all([shown.refresh(), summarise()]);
    main.querySelector("#failure")?.remove();
  } catch (error) {
    if (error.status === 401) {
      askForToken(error.message);
    } else {
      main.querySelector("#failure")?.remove();
      main.prepend(h("p", { id: "failure", class: "bad", role: "alert" }, error.message));
    }
  }
  looking = false;
  if (again) {
    again = false;
    soon();
  }
}

/** Looks again, not too soon after the last time. */
function soon() {
  clearTimeout(timer);
  timer = setTimeout(look, Math.max(50, last + (view.calm ? CALM : SPACING) - Date.now()));
}

function open() {
  const [path, query] = location.hash.slice(1).split("?");
  const words = path.split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  // A prefix may be typed into the address as it is.
  const [name, ...rest] = words[0] in VIEWS ? words : ["map"];
  const parameters = name === "prefix" && rest.length > 1 ? [rest.join("/")] : rest;
  view = VIEWS[name](parameters, new URLSearchParams(query || ""));
  document.title = `${view.title} – Caracal console`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(view.root);
  main.focus({ preventScroll: true });
  look();
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const destination = document.getElementById("destination").value.trim();
  if (destination) location.hash = place(["prefix", destination]);
});
addEventListener("hashchange", open);
open();
setInterval(soon, PERIOD);
follow(
  (kind, event) => {
    live = true;
    remember(kind, event);
    soon();
  },
  () => {
    live = false;
    soon();
  },
);
