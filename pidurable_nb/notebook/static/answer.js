// The Answer widget: a submission and its answer as it grows. Its words come from view.py; this file places them.

import { widget } from "./live.js";
import { markdownView } from "./markdown.js";
import { box, copyText, icon, make, put, seconds, ticks, toggle } from "./parts.js";

function textPart() {
  const node = make("div", "pd-text");
  const label = make("div", "pd-label");
  const body = make("div", "pd-md");
  node.append(label, body);
  const show = markdownView(body);
  return {
    node,
    show(item) {
      node.classList.toggle("pd-struck", item.struck);
      node.classList.toggle("pd-streaming", item.state === "streaming");
      if (item.struck !== (node.firstChild === label)) node.insertBefore(item.struck ? label : body, node.firstChild);
      toggle(label, item.label !== null);
      put(label, item.label);
      if (item.struck) {
        body.setAttribute("tabindex", "0");
        body.setAttribute("aria-label", item.label ?? "cut off");
        body.setAttribute("role", "deletion");
      } else for (const name of ["tabindex", "aria-label", "role"]) body.removeAttribute(name);
      show(item.text);
    },
  };
}

function thinkingPart() {
  const node = make("details", "pd-thinking", { "aria-live": "off" });
  const summary = make("summary");
  const body = make("div", "pd-md");
  node.append(summary, body);
  const show = markdownView(body);
  let latest = "";
  node.addEventListener("toggle", () => node.open && show(latest));
  return {
    node,
    show(item) {
      latest = item.text;
      const count = item.text.split(/\s+/).filter(Boolean).length;
      const words = `${count.toLocaleString("en-US")} word${count === 1 ? "" : "s"}`;
      const label = item.label ? ` · ${item.label}` : "";
      put(summary, `${item.state === "streaming" ? "thinking…" : "thinking"} · ${words}${label}`);
      if (node.open) show(latest);
    },
  };
}

function noticePart() {
  const node = make("div", "pd-notice");
  const sign = icon();
  const text = make("span");
  node.append(sign.node, text);
  return {
    node,
    show(item) {
      sign.show(item.badge[0]);
      node.dataset.tone = item.badge[2];
      ticks(text, item.badge[2] === "muted" ? item.text : `${item.badge[1]}: ${item.text}`);
    },
  };
}

function toolPart() {
  const node = make("details", "pd-tool");
  node.open = true;
  const summary = make("summary");
  const sign = icon();
  const state = make("span", "pd-state");
  const call = make("code", "pd-call");
  const name = make("b");
  const args = make("span");
  call.append(name, "(", args, ")");
  const facts = make("span", "pd-facts");
  summary.append(sign.node, state, call, facts);
  const body = make("div", "pd-tool-body", { "aria-live": "off" });
  const full = make("details", "pd-arguments");
  const fullTitle = make("summary");
  fullTitle.textContent = "all arguments";
  const fullText = make("pre", "", { tabindex: "0", "aria-label": "arguments" });
  full.append(fullTitle, fullText);
  const output = box("output");
  const result = box("result");
  const details = box("details");
  const diagnostics = make("div", "pd-diagnostics");
  body.append(full, output.node, result.node, details.node, diagnostics);
  node.append(summary, body);
  return {
    node,
    show(item) {
      sign.show(item.badge[0]);
      node.dataset.tone = item.badge[2];
      put(name, item.name);
      put(args, item.arguments);
      summary.title = `${item.name}(${item.arguments})`;
      put(state, item.badge[1]);
      put(facts, item.facts.join(" · "));
      toggle(full, item.arguments_full !== null);
      put(fullText, item.arguments_full);
      output.show(item.output);
      result.show(item.result);
      details.show(item.details);
      put(diagnostics, item.diagnostics.map(([severity, message]) => `${severity}: ${message}`).join("\n"));
      toggle(diagnostics, item.diagnostics.length > 0);
      const parts = [full, output.node, result.node, details.node, diagnostics];
      toggle(body, parts.some((part) => !part.hidden));
    },
  };
}

const PARTS = { text: textPart, thinking: thinkingPart, notice: noticePart, tool: toolPart };

// Keep one part for each key, in the order of `items`; a part that stays is changed, not made again.
function parts(host) {
  const kept = new Map();
  return function show(items) {
    const seen = new Set();
    let place = host.firstChild;
    for (const item of items) {
      const key = `${item.kind} ${item.key}`;
      if (!Object.hasOwn(PARTS, item.kind) || seen.has(key)) continue;
      seen.add(key);
      let part = kept.get(key);
      if (!part) {
        part = PARTS[item.kind]();
        kept.set(key, part);
      }
      if (part.node === place) place = place.nextSibling;
      else host.insertBefore(part.node, place);
      part.show(item);
    }
    for (const [key, part] of kept) {
      if (seen.has(key)) continue;
      part.node.remove();
      kept.delete(key);
    }
  };
}

export function mountAnswer(feed, model, el) {
  const root = make("section", "pd pd-answer", { "aria-label": "Answer" });
  const header = make("div", "pd-header");
  const badge = make("span", "pd-badge", { role: "status" });
  const sign = icon();
  const word = make("span");
  badge.append(sign.node, word);
  const facts = make("span", "pd-facts");
  const time = make("span", "pd-time");
  const stop = make("button", "pd-button", { type: "button", "aria-label": "Stop this answer" });
  stop.title = "Stop this answer; %durable stop does the same";
  stop.textContent = "Stop";
  const left = make("div", "pd-header-left");
  left.append(badge, facts, time);
  header.append(left, stop);
  const prompt = make("blockquote", "pd-prompt");
  const problem = make("div", "pd-problem");
  const body = make("div", "pd-body", { "aria-live": "polite", "aria-relevant": "additions text" });
  const footer = make("div", "pd-footer");
  const usage = make("span");
  const note = make("span", "pd-note");
  const asked = make("span", "pd-asked", { role: "status" });
  const copy = make("button", "pd-link", { type: "button", "aria-label": "Copy the answer as Markdown" });
  copy.textContent = "copy";
  footer.append(usage, note, asked, copy);
  root.append(header, prompt, problem, body, footer);
  el.append(root);

  const showParts = parts(body);
  let stopping = false;
  let lostAt = null;
  let tallest = 0;

  stop.addEventListener("click", () => {
    if (stopping || feed.view.stopping || feed.lost || !feed.view.can_stop) return;
    stopping = true;
    model.send({ do: "stop" });
    update();
  });
  copy.addEventListener("click", () => {
    const texts = feed.view.items.filter((item) => item.kind === "text" && !item.struck).map((item) => item.text);
    copyText(copy, texts.join("\n\n"));
  });
  body.addEventListener("click", (event) => {
    const button = event.target.closest?.(".pd-copy");
    if (button) copyText(button, button.parentNode.querySelector("code").textContent);
  });

  // While an answer grows, its body never gets lower: what is below it must not jump up.
  function release() {
    tallest = 0;
    body.style.minHeight = "";
  }
  body.addEventListener("toggle", release, true);
  let width = 0;
  const resized = new ResizeObserver(([entry]) => {
    if (width && Math.abs(entry.contentRect.width - width) > 1) release();
    width = entry.contentRect.width;
  });
  resized.observe(body);

  function tick() {
    const { view } = feed;
    if (feed.lost) lostAt ??= Date.now() / 1000;
    const now = (lostAt ?? Date.now() / 1000) - feed.skew;
    const running = view.ended_at === null;
    const elapsed = view.started_at === null ? null : (running ? now : view.ended_at) - view.started_at;
    put(time, elapsed === null || (running && view.settled) ? "" : seconds(elapsed, running));
    const wait = view.retry_at === null ? 0 : view.retry_at - now;
    const said = wait > 0 ? `${view.badge[1]} in ${seconds(Math.ceil(wait), true)}` : view.badge[1];
    put(word, feed.lost && !view.settled ? "kernel ended" : said);
  }

  function update() {
    const { view } = feed;
    const lost = feed.lost && !view.settled;
    const still = lost || view.settled;
    const [shape, , tone] = lost ? ["!", "", "warn"] : view.badge;
    root.dataset.status = view.status;
    root.classList.toggle("pd-settled", still);
    root.dataset.tone = tone;
    badge.dataset.tone = tone;
    sign.show(shape);
    put(facts, view.facts.join(" · "));
    toggle(prompt, Boolean(view.prompt));
    put(prompt, view.prompt);
    toggle(problem, Boolean(view.problem) && !lost);
    ticks(problem, view.problem ?? "");
    toggle(body, view.items.length > 0 || view.status === "running");
    body.classList.toggle("pd-empty", view.items.length === 0 && view.status === "running");
    showParts(view.items);
    put(usage, view.usage.join(" · "));
    put(note, lost ? "everything shown is stored · run the cells again to go on" : view.note);
    const stoppable = view.can_stop && !lost;
    if (!stoppable) stopping = false;
    // A button that has the focus stays until the focus moves on; before the end it keeps its place.
    const away = !stoppable && document.activeElement !== stop;
    stop.classList.toggle("pd-gone", away);
    toggle(stop, !(away && view.settled));
    stop.setAttribute("aria-disabled", String(stopping || Boolean(view.stopping) || !stoppable));
    ticks(asked, view.stopping && !lost ? view.stopping : stopping ? "stop is asked for… it has to wait while a cell runs; interrupting the cell or %durable stop does the same" : "");
    toggle(copy, view.settled && view.items.some((item) => item.kind === "text" && !item.struck && item.text));
    toggle(footer, !view.settled || !copy.hidden || view.usage.length > 0 || Boolean(view.note));
    tick();
    if (view.settled) {
      release();
    } else {
      const height = Math.ceil(body.getBoundingClientRect().height);
      if (height > tallest) {
        tallest = height;
        body.style.minHeight = `${height}px`;
      }
    }
  }

  stop.addEventListener("blur", update);
  const silence = feed.listen(update);
  const timer = setInterval(() => feed.view.settled || feed.lost || tick(), 1000);
  update();
  return () => {
    clearInterval(timer);
    resized.disconnect();
    silence();
  };
}

export default widget(mountAnswer);
