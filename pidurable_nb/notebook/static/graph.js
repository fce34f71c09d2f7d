// The Task graph widget: a tree of tasks with the waits across it. Its words come from graphview.py.

import { widget } from "./live.js";
import { box, icon, make, ownKeys, put, seconds, ticks, toggle } from "./parts.js";
import { ROW_HEIGHT, treeList, twist } from "./tree.js";

const GRAPH_SVG = "http://www.w3.org/2000/svg";
const FOLD_OVER = 20;
const URGENT = 8;
const MORE = 200;
const EDGES = 60;
const DETAILS = ["input", "checkpoint", "outcome", "memos", "story"];

export function mountGraph(feed, model, el) {
  const root = make("section", "pd pd-graph", { "aria-label": "Task graph" });
  const header = make("div", "pd-caption");
  const title = make("span", "pd-title");
  const note = make("span", "pd-note");
  header.append(title, note);
  const held = make("div", "pd-held");
  const host = make("div", "pd-tree", { role: "tree", "aria-label": "Tasks" });
  const svg = document.createElementNS(GRAPH_SVG, "svg");
  svg.setAttribute("class", "pd-edges");
  svg.setAttribute("aria-hidden", "true");
  const empty = make("div", "pd-quiet");
  empty.textContent = "nothing has run yet";
  const pick = make("div", "pd-pick", { role: "region", "aria-label": "Selected task", tabindex: "0" });
  const split = make("div", "pd-split");
  const left = make("div", "pd-side");
  left.append(host, empty);
  host.append(svg);
  split.append(left, pick);
  root.append(header, held, split);
  el.append(root);
  const release = ownKeys(root);

  // What the person opened or closed by hand, and how many rows of an opened fold are shown.
  const opened = new Map();
  const shownOf = new Map();
  const facts = new Map();
  let chosen = null;
  let details = null;
  let askedFor = null;
  let askedAt = 0;
  let asking = "";
  let refused = "";
  const aborting = new Map();
  let tallest = 0;

  const badgeOf = (node) => node.badge ?? feed.view.badges[node.state] ?? ["·", node.state, "muted"];
  const isLive = (node) => !["completed", "failed", "faulted", "aborted", "orphaned"].includes(node.state);
  const now = () => Date.now() / 1000 - feed.skew;

  function timeOf(node) {
    if (!isLive(node)) {
      const known = node.started_at !== undefined && node.ended_at !== undefined;
      return known ? seconds(node.ended_at - node.started_at, false) : "";
    }
    if (node.until !== undefined) {
      const left = node.until - now();
      const words = seconds(Math.ceil(left), true);
      if (node.state !== "sleeping") return left > 0 ? `for at most ${words} more` : "its time is over";
      return left > 0 ? `wakes in ${words}` : "wakes now";
    }
    return node.started_at === undefined ? "" : seconds(now() - node.started_at, true);
  }

  const factsOf = (node) =>
    [node.phase, ...(node.marks ?? []), node.about, timeOf(node)]
      .filter(Boolean)
      .map((fact) => ` · ${fact}`)
      .join("");

  function childrenOf(nodes) {
    const below = new Map();
    for (const [key, node] of Object.entries(nodes)) {
      const owner = node.owner !== undefined && nodes[node.owner] ? String(node.owner) : null;
      if (!below.has(owner)) below.set(owner, []);
      below.get(owner).push(key);
    }
    return below;
  }

  function countWords(keys) {
    const counts = new Map();
    for (const key of keys) {
      const [sign, word] = badgeOf(feed.view.nodes[key]);
      counts.set(word, [sign, (counts.get(word)?.[1] ?? 0) + 1]);
    }
    return [...counts].map(([word, [sign, count]]) => `${sign} ${count.toLocaleString("en-US")} ${word}`).join(" · ");
  }

  // The rows from top to bottom. Many tasks of one owner are one row that counts them, and those that need a look.
  function itemsOf(nodes) {
    const below = childrenOf(nodes);
    const items = [];
    const needsLook = (key) => ["warn", "bad"].includes(badgeOf(nodes[key])[2]);

    function place(keys, owner, level) {
      let rows = keys;
      if (keys.length > FOLD_OVER) {
        const fold = `fold ${owner ?? ""}`;
        const open = opened.get(fold) ?? false;
        items.push({ key: fold, level, pos: 1, size: 1, open, fold: keys.length, counts: countWords(keys) });
        rows = open ? keys.slice(0, shownOf.get(fold) ?? MORE) : keys.filter(needsLook).slice(0, URGENT);
        level += 1;
      }
      const start = items.length;
      rows.forEach((key, index) => {
        const under = below.get(key) ?? [];
        // A tree that has ended is one line, unless it is the newest.
        const done = owner === null && !isLive(nodes[key]) && index < rows.length - 1 && !under.some((id) => isLive(nodes[id]));
        const open = under.length ? opened.get(key) ?? !done : null;
        if (open !== null && !opened.has(key)) opened.set(key, open);
        items.push({ key, level, pos: index + 1, size: rows.length, open, node: nodes[key], chosen: key === chosen });
        if (open) place(under, key, level + 1);
      });
      if (items.length > start && rows !== keys && rows.length < keys.length && opened.get(`fold ${owner ?? ""}`)) {
        items.push({ key: `more ${owner ?? ""}`, level, pos: 1, size: 1, open: null, more: keys.length - rows.length });
      }
    }
    place(below.get(null) ?? [], null, 1);
    for (const item of items) item.label = labelOf(item);
    return items;
  }

  function labelOf(item) {
    if (item.fold) return `${item.fold} tasks: ${item.counts}`;
    if (item.more) return `show ${Math.min(MORE, item.more)} of ${item.more} more`;
    const { node } = item;
    return [`task ${item.key}`, node.title, badgeOf(node)[1], node.phase, ...(node.marks ?? []), node.about].filter(Boolean).join(", ");
  }

  function rowParts(element) {
    const twisted = twist();
    const sign = icon();
    const name = make("span", "pd-name");
    const id = make("span", "pd-id");
    const text = make("code");
    name.append(id, text);
    const rest = make("span", "pd-rest");
    const state = make("span", "pd-state");
    const more = make("span");
    rest.append(state, more);
    element.append(twisted.node, sign.node, name, rest);
    return {
      show(item) {
        twisted.show(item.open);
        element.classList.toggle("pd-chosen", Boolean(item.chosen));
        if (item.node) {
          const { node } = item;
          const [shape, , tone] = badgeOf(node);
          element.dataset.tone = tone;
          element.classList.toggle("pd-over", !isLive(node));
          sign.show(shape);
          put(id, item.key);
          put(text, node.title);
          element.title = `${item.key} ${node.title}`;
          facts.set(item.key, [node, more]);
          put(state, badgeOf(node)[1]);
          put(more, factsOf(node));
        } else {
          element.dataset.tone = "muted";
          sign.show("·");
          put(id, "");
          put(text, item.fold ? `${item.fold.toLocaleString("en-US")} tasks` : `show ${Math.min(MORE, item.more)} more`);
          put(state, "");
          put(more, item.fold ? item.counts : `${item.more.toLocaleString("en-US")} are left`);
          element.title = item.fold ? item.counts : "";
        }
      },
    };
  }

  const list = treeList(host, {
    role: "treeitem",
    row: rowParts,
    toggle(item) {
      opened.set(item.key, !item.open);
      update();
    },
    choose(item) {
      if (item.node) {
        if (chosen !== item.key) details = null;
        chosen = item.key;
        asking = refused = "";
        ask();
      } else if (item.more) {
        const fold = item.key.replace("more", "fold");
        shownOf.set(fold, (shownOf.get(fold) ?? MORE) + MORE);
      } else opened.set(item.key, !item.open);
      update();
    },
  });

  // -- waits, as arcs at the right ------------------------------------------------------------------------------------

  function drawEdges(items) {
    const places = list.places();
    const height = items.length * ROW_HEIGHT;
    const lines = [];
    items.forEach((item, from) => {
      for (const target of item.node?.edges ?? []) {
        const to = places.get(String(target));
        if (to !== undefined && lines.length < EDGES) lines.push([from, to, item.key === chosen || String(target) === chosen]);
      }
    });
    root.classList.toggle("pd-edged", lines.length > 0);
    svg.style.height = `${height}px`;
    const paths = lines.map(([from, to, strong]) => {
      const path = document.createElementNS(GRAPH_SVG, "path");
      const [y1, y2] = [from, to].map((index) => index * ROW_HEIGHT + ROW_HEIGHT / 2);
      const bend = Math.min(30, 8 + Math.abs(to - from) * 3);
      path.setAttribute("d", `M2 ${y1}C${bend} ${y1} ${bend} ${y2} 4 ${y2}M9 ${y2 - 4}L3 ${y2}L9 ${y2 + 4}`);
      if (strong) path.setAttribute("class", "pd-strong");
      return path;
    });
    svg.replaceChildren(...paths);
  }

  // -- the selected task -----------------------------------------------------------------------------------------------

  const hint = make("div", "pd-quiet");
  hint.textContent = "Select a task to see its input, its checkpoint and its story.";
  const about = make("div", "pd-about");
  const head = make("div", "pd-pick-head");
  const badge = make("span", "pd-badge");
  const badgeSign = icon();
  const badgeWord = make("span");
  badge.append(badgeSign.node, badgeWord);
  const name = make("code", "pd-pick-name");
  const abort = make("button", "pd-button", { type: "button" });
  abort.textContent = "Abort";
  head.append(badge, name, abort);
  const line = make("div", "pd-facts");
  const problem = make("div", "pd-problem");
  const waiting = make("div", "pd-quiet", { role: "status" });
  const boxes = Object.fromEntries(DETAILS.map((label) => [label, box(label)]));
  const magic = make("div", "pd-quiet");
  about.append(head, line, problem, waiting, ...DETAILS.map((label) => boxes[label].node), magic);
  pick.append(hint, about);

  function ask() {
    if (chosen === null || feed.lost) return;
    const task = chosen;
    askedFor = JSON.stringify(feed.view.nodes[task]);
    askedAt = Date.now();
    const tell = ({ done, error, late }) => {
      if (task !== chosen) return;
      const first = done && !details;
      if (done) details = done;
      asking = done ? "" : error ?? late ?? asking;
      showPick();
      // What is long is read from its beginning, but the story from its end.
      if (first) for (const label of DETAILS) if (label !== "story") boxes[label].node.querySelector("pre").scrollTop = 0;
    };
    feed.press("select", { task: Number(task) }, { magic: `%durable task ${task}`, tell });
  }

  abort.addEventListener("click", () => {
    if (abort.getAttribute("aria-disabled") === "true") return;
    const task = chosen;
    aborting.set(task, "its abort is asked for…");
    const tell = ({ done, error, late }) => {
      if (error) aborting.delete(task);
      else aborting.set(task, late ?? (done ? "it is being aborted" : aborting.get(task)));
      if (task !== chosen) return;
      refused = error ?? "";
      showPick();
    };
    feed.press("abort", { task: Number(task) }, { magic: `%durable abort ${task}`, tell });
    showPick();
  });

  function showPick() {
    const node = chosen === null ? undefined : feed.view.nodes[chosen];
    toggle(hint, chosen === null);
    toggle(about, chosen !== null);
    root.classList.toggle("pd-picked", chosen !== null);
    if (chosen === null) return;
    const [shape, word, tone] = node ? badgeOf(node) : ["·", "no longer shown", "muted"];
    badge.dataset.tone = tone;
    badgeSign.show(shape);
    put(badgeWord, word);
    put(name, node ? `${chosen} ${node.title}` : `task ${chosen}`);
    put(line, node ? [node.kind, node.phase, ...(node.marks ?? []), timeOf(node)].filter(Boolean).join(" · ") : "");
    toggle(problem, Boolean(node?.about));
    put(problem, node?.about);
    const marked = node?.marks?.includes("being aborted");
    const can = Boolean(node) && isLive(node) && feed.view.can_abort && !feed.lost;
    const asked = aborting.has(chosen) || marked;
    // A button that has the focus stays until the focus moves on.
    abort.classList.toggle("pd-gone", !can && document.activeElement !== abort);
    abort.setAttribute("aria-disabled", String(!can || asked));
    abort.setAttribute("aria-label", `Abort task ${chosen} and the tasks below it`);
    abort.title = `Abort this task and those below it; %durable abort ${chosen} does the same`;
    ticks(waiting, refused || (can && aborting.get(chosen)) || (details ? "" : asking));
    toggle(waiting, Boolean(waiting.textContent));
    for (const label of DETAILS) boxes[label].show(details?.[label] ?? "");
    ticks(magic, `\`%durable task ${chosen}\` tells the story${can ? `, \`%durable abort ${chosen}\` aborts it` : ""}`);
  }

  // -- keeping it present ----------------------------------------------------------------------------------------------

  function tick() {
    for (const [node, more] of facts.values()) if (isLive(node)) put(more, factsOf(node));
    const node = chosen === null ? undefined : feed.view.nodes[chosen];
    if (node && isLive(node)) put(line, [node.kind, node.phase, ...(node.marks ?? []), timeOf(node)].filter(Boolean).join(" · "));
  }

  function update() {
    const { view } = feed;
    facts.clear();
    const items = itemsOf(view.nodes);
    const atEnd = host.scrollHeight - host.scrollTop - host.clientHeight < 4;
    const scrolled = host.scrollTop > 0;
    list.show(items);
    drawEdges(items);
    put(title, view.title);
    const live = Object.values(view.nodes).some(isLive);
    const lost = feed.lost && live ? "kernel ended · everything shown is stored" : "";
    put(note, lost || (view.hidden ? `${view.hidden.toLocaleString("en-US")} that ended earlier are left out` : ""));
    toggle(held, Boolean(view.held) && !feed.lost);
    ticks(held, view.held ? `! ${view.held}` : "");
    toggle(empty, items.length === 0);
    toggle(pick, items.length > 0);
    root.classList.toggle("pd-settled", feed.lost);
    // What is below must not jump up when tasks end; a person who looks at the end stays there.
    const height = Math.min(items.length * ROW_HEIGHT, 20 * ROW_HEIGHT);
    if (height > tallest) {
      tallest = height;
      host.style.minHeight = `${height}px`;
    }
    if (atEnd && scrolled) host.scrollTop = host.scrollHeight;
    const node = chosen === null ? undefined : view.nodes[chosen];
    if (node && JSON.stringify(node) !== askedFor) {
      if (Date.now() - askedAt > 400) ask();
      else later();
    }
    showPick();
  }

  let due = null;
  function later() {
    due ??= setTimeout(() => {
      due = null;
      ask();
    }, 500);
  }

  abort.addEventListener("blur", showPick);
  const silence = feed.listen(update);
  const timer = setInterval(() => feed.lost || tick(), 1000);
  update();
  const unmount = () => {
    clearInterval(timer);
    release();
    clearTimeout(due);
    silence();
  };
  // Show a task as if someone had selected it.
  unmount.choose = (task) => {
    details = null;
    chosen = task;
    asking = refused = "";
    ask();
    update();
  };
  return unmount;
}

export default widget(mountGraph);
