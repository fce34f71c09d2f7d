// The Timeline widget: what ran when, across the lives of a session. Its words and its axis come from timelineview.py.

import { widget } from "./live.js";
import { icon, make, ownKeys, put, seconds, toggle } from "./parts.js";
import { ROW_HEIGHT, treeList, twist } from "./tree.js";

const ZOOMS = [1, 2, 4, 8, 16, 32];
const LEGEND = [
  ["run", "running", "runs"],
  ["run", "parked", "stopped, goes on later"],
  ["run", "ended", "ended"],
  ["run", "cut_off", "cut off by a crash"],
  ["asleep", "asleep", "asleep"],
  ["waiting", "waiting", "waiting"],
  ["dead", "dead", "no process"],
];
const SIGNS = "▸ opened · ○ closed · ✕ crashed · ⋯ nothing happens";
const TICK_WIDTH = 64;
const DATED_WIDTH = 100;

function placeOf(knots, at) {
  let index = knots.findIndex(([instant]) => instant >= at);
  if (index < 0) return 1;
  if (index === 0) return knots[0][1];
  const [before, left] = knots[index - 1];
  const [after, right] = knots[index];
  return left + ((right - left) * (at - before)) / (after - before || 1);
}

const percent = (share) => `${(share * 100).toFixed(3)}%`;

function clock(at, dated = false) {
  const moment = new Date(at * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
  return dated ? `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${time}` : time;
}

export function mountTimeline(feed, model, el) {
  const root = make("section", "pd pd-timeline", { "aria-label": "Timeline" });
  const header = make("div", "pd-caption");
  const title = make("span", "pd-title");
  const note = make("span", "pd-note");
  const zooms = make("span", "pd-zooms", { role: "group", "aria-label": "Width of the timeline" });
  header.append(title, note, zooms);
  const legend = make("div", "pd-legend", { "aria-hidden": "true" });
  for (const [kind, how, words] of LEGEND) {
    const entry = make("span");
    const swatch = make("i", "pd-swatch");
    swatch.append(make("i", `pd-bar pd-${kind} pd-how-${how}`));
    entry.append(swatch, words);
    legend.append(entry);
  }
  legend.append(SIGNS);
  const host = make("div", "pd-lanes", { role: "treegrid", "aria-label": "Questions and tasks over time", "aria-colcount": "3" });
  const head = make("div", "pd-head", { "aria-hidden": "true" });
  const corner = make("span", "pd-corner");
  const axis = make("div", "pd-axis");
  head.append(corner, axis);
  const over = make("div", "pd-over-lanes", { "aria-hidden": "true" });
  host.append(head, over);
  const empty = make("div", "pd-quiet");
  empty.textContent = "nothing has run yet";
  const pick = make("div", "pd-words", { role: "region", "aria-label": "Selected row", tabindex: "0" });
  const lives = make("details", "pd-lives");
  const livesTitle = make("summary");
  const livesList = make("ul");
  lives.append(livesTitle, livesList);
  root.append(header, legend, host, empty, pick, lives);
  el.append(root);
  const release = ownKeys(root);

  const opened = new Map();
  let chosen = null;
  let zoom = 0;
  let tallest = 0;
  let drawn = false;
  let growing = [];
  let following = true;
  let newest = true;

  const now = () => (lostAt ?? Date.now() / 1000) - feed.skew;
  let lostAt = null;

  // -- rows ------------------------------------------------------------------------------------------------------------

  function itemsOf({ order, rows }) {
    const below = new Map();
    for (const key of order) {
      const owner = rows[key].owner ?? null;
      if (!below.has(owner)) below.set(owner, []);
      below.get(owner).push(key);
    }
    const items = [];
    function place(keys, level) {
      keys.forEach((key, index) => {
        const under = below.get(key) ?? [];
        const open = under.length ? opened.get(key) ?? !rows[key].folded : null;
        if (open !== null && !opened.has(key)) opened.set(key, open);
        const item = { key, level, pos: index + 1, size: keys.length, open, row: rows[key], chosen: key === chosen };
        items.push({ ...item, label: labelOf(item) });
        if (open) place(under, level + 1);
      });
    }
    place(below.get(null) ?? [], 1);
    return items;
  }

  function endOf(bar) {
    const [, , end, , more] = bar;
    if (end !== null) return end;
    return bar[0] !== "run" && typeof more === "number" ? Math.max(more, now()) : now();
  }

  function barWords(bar) {
    const [kind, start, end, how, phase, number] = bar;
    const took = seconds((end ?? now()) - start, end === null);
    const words = feed.view.words[how] ?? how;
    if (kind === "run") return `attempt ${number} at ${phase}: ${clock(start)}, ${took}, ${words}`;
    const until = end === null && typeof phase === "number" ? `, until ${clock(phase, true)}` : "";
    return `${words}: ${clock(start)}, ${took}${until}`;
  }

  function durationOf({ bars }) {
    if (!bars.length) return "";
    const last = bars[bars.length - 1];
    return seconds((last[2] ?? now()) - bars[0][1], last[2] === null);
  }

  function labelOf({ row }) {
    const runs = row.bars.filter(([kind]) => kind === "run").length;
    const cut = row.bars.filter(([, , , how]) => how === "cut_off").length;
    const said = [row.title, row.badge[1]];
    if (row.bars.length) said.push(`from ${clock(row.bars[0][1], true)}`);
    if (row.bars.length && row.bars[row.bars.length - 1][2] !== null) said.push(durationOf(row));
    if (runs > 1) said.push(`ran ${runs} times`);
    if (cut) said.push(`cut off ${cut === 1 ? "by a crash" : `${cut} times`}`);
    return said.join(", ");
  }

  function lane(element) {
    const label = make("div", "pd-lane-label", { role: "gridcell" });
    const twisted = twist();
    const sign = icon();
    const name = make("span", "pd-lane-name");
    const took = make("span", "pd-took");
    label.append(twisted.node, sign.node, name, took);
    const chart = make("div", "pd-lane", { role: "gridcell" });
    element.append(label, chart);
    const bars = [];
    return {
      show(item) {
        const { row } = item;
        const [shape, , tone] = row.badge;
        element.dataset.tone = tone;
        element.classList.toggle("pd-chosen", Boolean(item.chosen));
        twisted.show(item.open);
        sign.show(shape);
        put(name, row.title);
        label.title = `${row.title} · ${row.badge[1]}`;
        put(took, durationOf(row));
        chart.setAttribute("aria-label", row.bars.map(barWords).join("; "));
        while (bars.length > row.bars.length) bars.pop().remove();
        row.bars.forEach((bar, index) => {
          const node = (bars[index] ??= chart.appendChild(make("i")));
          const wanted = `pd-bar pd-${bar[0]} pd-how-${bar[3]}`;
          if (node.className !== wanted) node.className = wanted;
          node.title = barWords(bar);
          spread(node, bar);
          if (bar[2] === null) growing.push([node, bar, row, took]);
        });
      },
    };
  }

  function spread(node, bar) {
    const { knots } = feed.view;
    const start = placeOf(knots, bar[1]);
    node.style.left = percent(start);
    node.style.width = percent(Math.max(0, placeOf(knots, endOf(bar)) - start));
  }

  const list = treeList(host, {
    role: "row",
    row: lane,
    toggle(item) {
      opened.set(item.key, !item.open);
      update();
    },
    choose(item) {
      chosen = item.key;
      update();
    },
  });

  // -- the axis, breaks and lives --------------------------------------------------------------------------------------

  function drawAxis(count) {
    const { ticks, breaks, lives: all, knots } = feed.view;
    const width = axis.getBoundingClientRect().width || 1;
    const made = [];
    const taken = [];
    for (const [place, label] of shownTicks(ticks, width)) {
      const left = place * width;
      const right = left + (label.length > 10 ? DATED_WIDTH : TICK_WIDTH);
      if (right > width || taken.some(([from, to]) => left < to && from < right)) continue;
      taken.push([left, right]);
      const tick = make("span", "pd-tick");
      tick.textContent = label;
      tick.style.left = percent(place);
      made.push(tick);
    }
    const marks = [];
    for (const [start, end, words] of breaks) {
      const gap = make("i", "pd-break");
      gap.style.left = percent(start);
      gap.style.width = percent(end - start);
      marks.push(gap);
      if ((end - start) * width < 14) continue;
      const sign = make("span", "pd-break-sign");
      sign.textContent = "⋯";
      sign.title = words;
      sign.style.left = percent((start + end) / 2);
      made.push(sign);
    }
    for (const [number, start, end, ended, words] of all) {
      if (number > 1 && start >= knots[0][0]) marks.push(lifeLine(start, "opened", made, "▸", words));
      if (end !== null && end >= knots[0][0]) {
        marks.push(lifeLine(end, ended, made, ended === "closed" ? "○" : "✕", words));
      }
    }
    axis.replaceChildren(...made);
    over.replaceChildren(...marks);
    over.style.height = `${(count + 1) * ROW_HEIGHT}px`;
  }

  // Round times as close as they can be read, and where a stretch begins that would have none.
  function shownTicks(ticks, width) {
    const fine = ticks.filter(([, , level]) => level < 2);
    const gaps = fine.slice(1).map(([place], index) => (place - fine[index][0]) * width);
    const middle = gaps.sort((one, other) => one - other)[Math.floor(gaps.length / 2)] ?? 0;
    const round = middle > TICK_WIDTH + 10 ? fine : fine.filter(([, , level]) => level === 0);
    return [...round, ...ticks.filter(([, , level]) => level === 2)];
  }

  function lifeLine(at, how, signs, sign, words) {
    const place = percent(placeOf(feed.view.knots, at));
    const line = make("i", `pd-life pd-life-${how}`);
    line.style.left = place;
    const mark = make("span", `pd-life-sign pd-life-${how}`);
    mark.textContent = sign;
    mark.title = words;
    mark.style.left = place;
    signs.push(mark);
    return line;
  }

  const buttons = [
    ["−", "Narrower", () => Math.max(0, zoom - 1)],
    ["+", "Wider", () => Math.min(ZOOMS.length - 1, zoom + 1)],
    ["fit", "Fit to the width", () => 0],
  ].map(([text, label, next]) => {
    const button = make("button", "pd-button", { type: "button", "aria-label": label });
    button.textContent = text;
    button.addEventListener("click", () => {
      const middle = (host.scrollLeft + host.clientWidth / 2) / host.scrollWidth;
      zoom = next();
      root.style.setProperty("--pd-zoom", ZOOMS[zoom]);
      host.scrollLeft = middle * host.scrollWidth - host.clientWidth / 2;
      update();
    });
    zooms.append(button);
    return button;
  });

  // At first as wide as it takes to tell the newest questions' tasks apart.
  function chooseZoom(items) {
    const starts = items.filter(({ row, level }) => row.bars.length && !row.folded && level > 1).map(({ row }) => row.bars[0][1]);
    const share = starts.length ? 1 - placeOf(feed.view.knots, Math.min(...starts)) : 1;
    while (zoom < ZOOMS.length - 1 && ZOOMS[zoom + 1] * share <= 1) zoom += 1;
    root.style.setProperty("--pd-zoom", ZOOMS[zoom]);
  }

  // -- keeping it present ----------------------------------------------------------------------------------------------

  function showPick() {
    const row = chosen === null ? undefined : feed.view.rows[chosen];
    root.classList.toggle("pd-picked", chosen !== null);
    const lines = row ? row.bars.map(barWords) : ["Select a row to read its attempts."];
    const heading = row ? `${row.title} · ${row.badge[1]}` : "";
    const said = [heading, ...lines].filter(Boolean);
    while (pick.childElementCount > said.length) pick.lastChild.remove();
    said.forEach((text, index) => {
      const node = pick.children[index] ?? pick.appendChild(make("div"));
      node.className = !row ? "pd-quiet" : index === 0 ? "pd-words-head" : "";
      put(node, text);
    });
  }

  function tick() {
    for (const [node, bar, row, took] of growing) {
      spread(node, bar);
      put(took, durationOf(row));
    }
    if (chosen !== null) showPick();
  }

  function update() {
    const { view } = feed;
    if (feed.lost) lostAt ??= Date.now() / 1000;
    growing = [];
    const items = itemsOf(view);
    if (!drawn && items.length) chooseZoom(items);
    drawn ||= items.length > 0;
    list.show(items);
    drawAxis(items.length);
    put(title, view.title);
    const left = view.earlier ? `${view.earlier.toLocaleString("en-US")} earlier tasks are left out` : "";
    put(note, feed.lost && growing.length ? "kernel ended · everything shown is stored" : left);
    toggle(empty, items.length === 0);
    for (const part of [host, legend, zooms, pick]) toggle(part, items.length > 0);
    root.classList.toggle("pd-settled", feed.lost || growing.length === 0);
    buttons.forEach((button, index) => {
      const useless = index === 1 ? zoom === ZOOMS.length - 1 : zoom === 0;
      button.setAttribute("aria-disabled", String(useless));
    });
    const height = Math.min((items.length + 1) * ROW_HEIGHT, 17 * ROW_HEIGHT);
    if (height > tallest) {
      tallest = height;
      host.style.minHeight = `${height}px`;
    }
    if (following) host.scrollTop = host.scrollHeight;
    if (newest) host.scrollLeft = host.scrollWidth;
    toggle(lives, view.lives.length > 0);
    put(livesTitle, view.lives.length === 1 ? "1 life" : `${view.lives.length} lives`);
    const words = view.lives.map(([, , , ended, said]) => `${{ crashed: "✕", failed: "✕", closed: "○" }[ended] ?? "▸"} ${said}`);
    while (livesList.childElementCount > words.length) livesList.lastChild.remove();
    words.forEach((text, index) => put(livesList.children[index] ?? livesList.appendChild(make("li")), text));
    showPick();
  }

  host.addEventListener("scroll", () => {
    following = host.scrollHeight - host.scrollTop - host.clientHeight < 8;
    newest = host.scrollWidth - host.scrollLeft - host.clientWidth < 8;
  });
  let width = 0;
  const resized = new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    drawAxis(list.places().size);
    if (newest) host.scrollLeft = host.scrollWidth;
  });
  resized.observe(host);
  const silence = feed.listen(update);
  const timer = setInterval(() => feed.lost || tick(), 1000);
  update();
  return () => {
    clearInterval(timer);
    release();
    resized.disconnect();
    silence();
  };
}

export default widget(mountTimeline);
