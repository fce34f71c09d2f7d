// The Dashboard: the conversation, the tasks, the timeline and what was found, in tabs, with filters.

import { mountConversation } from "./conversation.js";
import { mountGraph } from "./graph.js";
import { widget } from "./live.js";
import { icon, make, ownKeys, put, ticks, toggle } from "./parts.js";
import { mountTimeline } from "./timeline.js";

const STATUSES = [
  ["", "every status"],
  ["on", "going on"],
  ["waits", "waits or is held back"],
  ["well", "ended well"],
  ["badly", "failed, stopped or cut off"],
];
const KINDS = [
  ["", "every kind"],
  ["said", "questions and answers"],
  ["tasks", "tools and other tasks"],
];
const BY_TONE = { active: "on", warn: "waits", good: "well", bad: "badly" };

// A part of the present as a feed of its own, seen through a filter that may change.
function partOf(feed, name, through) {
  const listeners = new Set();
  let seen = null;
  let view = null;
  const part = {
    get view() {
      if (seen !== feed.seq) {
        seen = feed.seq;
        view = through(feed.view[name]);
      }
      return view;
    },
    get seq() {
      return feed.seq;
    },
    get skew() {
      return feed.skew;
    },
    get lost() {
      return feed.lost;
    },
    listen(listener) {
      listeners.add(listener);
      const silence = feed.listen(listener);
      return () => {
        listeners.delete(listener);
        silence();
      };
    },
    press: feed.press,
    refilter() {
      seen = null;
      for (const listener of listeners) listener(part);
    },
  };
  return part;
}

// Rows that pass, with those that they stand under, so that each is seen where it belongs.
function withOwners(rows, passes) {
  const kept = new Set();
  for (const [key, row] of Object.entries(rows)) {
    if (!passes(key, row)) continue;
    for (let at = key; at !== undefined && rows[at] && !kept.has(String(at)); at = rows[at].owner) kept.add(String(at));
  }
  return kept;
}

function statusOfState(badge) {
  if (["aborted", "stopped"].includes(badge[1])) return "badly";
  return BY_TONE[badge[2]] ?? "waits";
}

function statusOfBlock(block) {
  if (block.items.some((item) => item.asks)) return "waits";
  if (block.entry === null) return "on";
  const cut = (item) => item.struck || ["aborted", "error"].includes(item.state) || ["bad", "warn"].includes(item.badge?.[2]);
  return block.struck || block.items.some(cut) ? "badly" : "well";
}

function kindsOfBlock(block) {
  const tools = block.role === "tool" || block.items.some((item) => item.kind === "tool");
  const said = block.role === "user" || block.items.some((item) => item.kind === "text");
  return [...(tools ? ["tasks"] : []), ...(said || !tools ? ["said"] : [])];
}

function mountRecovery(feed, el) {
  const root = make("section", "pd pd-found", { "aria-label": "What was found at the opening" });
  const badge = make("span", "pd-badge");
  const sign = icon();
  const word = make("span");
  badge.append(sign.node, word);
  const lines = make("div");
  const scroll = make("div", "pd-found-rows", { tabindex: "0" });
  const table = make("table");
  scroll.append(table);
  const waits = make("div");
  root.append(badge, lines, scroll, waits);
  el.append(root);
  const view = feed.view.recovery;
  sign.show(view.badge[0]);
  badge.dataset.tone = view.badge[2];
  put(word, view.badge[1]);
  for (const [host, texts] of [[lines, view.lines], [waits, view.waits]]) {
    for (const text of texts) {
      const line = make("div");
      ticks(line, text);
      host.append(line);
    }
  }
  toggle(scroll, view.rows.length > 0);
  const row = (cells, tag) => {
    const made = make("tr");
    for (const text of cells) {
      const cell = make(tag);
      ticks(cell, text);
      made.append(cell);
    }
    return made;
  };
  const head = make("thead");
  head.append(row(["in flight", "what", "was", "now"], "th"));
  const body = make("tbody");
  body.append(...view.rows.map((cells) => row(cells, "td")));
  table.append(head, body);
}

function choice(label, options, changed) {
  const node = make("label", "pd-choice");
  const select = make("select", "pd-input", { "aria-label": label });
  for (const [value, words] of options) {
    const option = make("option", "", { value });
    option.textContent = words;
    select.append(option);
  }
  select.addEventListener("change", changed);
  node.append(select);
  return { node, select };
}

let boards = 0;

export function mountDashboard(feed, model, el) {
  boards += 1;
  const name = `pd-board-${Math.random().toString(36).slice(2, 8)}-${boards}`;
  const root = make("section", "pd pd-board", { "aria-label": "Dashboard" });
  const bar = make("div", "pd-board-bar");
  const tabs = make("div", "pd-tabs", { role: "tablist", "aria-label": "Parts of the dashboard" });
  const filters = make("div", "pd-row", { role: "group", "aria-label": "Filters" });
  const status = choice("Filter by status", STATUSES, refilter);
  const kind = choice("Filter by kind", KINDS, refilter);
  filters.append(status.node, kind.node);
  bar.append(tabs, filters);
  root.append(bar);
  el.append(root);
  const release = ownKeys(root);

  const open = () => !status.select.value && !kind.select.value;
  const passes = (is, kinds) =>
    (!status.select.value || is === status.select.value) && (!kind.select.value || kinds.includes(kind.select.value));

  const graph = partOf(feed, "graph", (view) => {
    if (open()) return view;
    const fits = (_, node) =>
      passes(statusOfState(node.badge ?? view.badges[node.state] ?? ["", node.state, "muted"]), [node.kind === "pi.generation" ? "said" : "tasks"]);
    const kept = withOwners(view.nodes, fits);
    return { ...view, nodes: Object.fromEntries(Object.entries(view.nodes).filter(([key]) => kept.has(key))) };
  });
  const timeline = partOf(feed, "timeline", (view) => {
    if (open()) return view;
    const fits = (key, row) => passes(statusOfState(row.badge), [key.startsWith("s") || row.title === "turn" ? "said" : "tasks"]);
    const kept = withOwners(view.rows, fits);
    return {
      ...view,
      order: view.order.filter((key) => kept.has(key)),
      rows: Object.fromEntries(Object.entries(view.rows).filter(([key]) => kept.has(key))),
    };
  });
  const conversation = partOf(feed, "talk", (view) => view);
  const ends = [];
  let talking = null;
  let tasks = null;

  // A task that the graph still holds is shown there; of one that it no longer holds the entry tells the story.
  function jump(task) {
    if (!feed.view.graph.nodes[task]) return false;
    status.select.value = kind.select.value = "";
    refilter();
    choose(1);
    tasks.choose(String(task));
    items[1].tab.focus();
    return true;
  }

  const items = [
    ["Conversation", (host) => ends.push((talking = mountConversation(conversation, model, host, { jump }))) && talking.filter((block) => passes(statusOfBlock(block), kindsOfBlock(block)))],
    ["Tasks", (host) => ends.push((tasks = mountGraph(graph, model, host)))],
    ["Timeline", (host) => ends.push(mountTimeline(timeline, model, host))],
    ["Opening", (host) => mountRecovery(feed, host)],
  ].map(([label, mount], index) => {
    const tab = make("button", "pd-tab", { type: "button", role: "tab", id: `${name}-tab-${index}`, "aria-controls": `${name}-${index}` });
    tab.textContent = label;
    const panel = make("div", "pd-panel", { role: "tabpanel", id: `${name}-${index}`, "aria-labelledby": `${name}-tab-${index}` });
    tab.addEventListener("click", () => choose(index));
    tabs.append(tab);
    root.append(panel);
    return { tab, panel, mount, mounted: false };
  });

  function choose(index) {
    items.forEach(({ tab, panel }, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
      toggle(panel, at === index);
    });
    toggle(filters, index < 3);
    const item = items[index];
    if (!item.mounted) {
      item.mounted = true;
      item.mount(item.panel);
    }
  }

  function refilter() {
    graph.refilter();
    timeline.refilter();
    talking?.filter((block) => passes(statusOfBlock(block), kindsOfBlock(block)));
  }

  tabs.addEventListener("keydown", (event) => {
    const at = items.findIndex(({ tab }) => tab === event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const index = (to + items.length) % items.length;
    choose(index);
    items[index].tab.focus();
  });
  choose(0);
  return () => {
    release();
    for (const end of ends) end();
  };
}

export default widget(mountDashboard);
