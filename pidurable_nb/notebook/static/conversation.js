// The Conversation widget: a transcript with its live part, what waits, and a place to write. Its words come from
// talkview.py; this file places them.

import { parts } from "./items.js";
import { widget } from "./live.js";
import { markdownView } from "./markdown.js";
import { box, copyText, icon, make, ownKeys, presser, put, seconds, textButton, ticks, toggle } from "./parts.js";

const TASK_DETAILS = ["story", "input", "checkpoint", "outcome", "memos"];

// What is known of a task, folded under the entry that it wrote.
function taskDetails() {
  const node = make("div", "pd-detail");
  const boxes = new Map(TASK_DETAILS.map((name) => [name, box(name)]));
  node.append(...[...boxes.values()].map((each) => each.node));
  node.hidden = true;
  return {
    node,
    show(said) {
      for (const [name, each] of boxes) each.show(said[name] ?? "");
      node.hidden = false;
    },
  };
}

// Writing an entry anew: what is sent goes on from before it, on a branch.
function rewriting(send, home) {
  const node = make("form", "pd-rewrite");
  const label = make("label", "pd-field");
  const text = make("textarea", "pd-input", { rows: "3" });
  label.append("asked on a new branch, where the notebook goes on; this one stays as it is", text);
  const row = make("div", "pd-row");
  const run = textButton("Run on a new branch", "Run this on a new branch");
  run.type = "submit";
  run.classList.add("pd-primary");
  const cancel = textButton("Cancel", "Cancel the edit", close);
  row.append(run, cancel);
  node.append(label, row);
  node.hidden = true;

  function close() {
    if (node.hidden) return;
    node.hidden = true;
    home().focus();
  }

  function submit(event) {
    event?.preventDefault();
    if (text.value.trim()) send(text.value, close);
  }

  node.addEventListener("submit", submit);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.shiftKey || event.ctrlKey) && event.target === text) submit();
    else return;
    event.preventDefault();
  });
  return {
    node,
    open(value) {
      text.value = value;
      node.hidden = false;
      text.focus();
    },
  };
}

function blockPart(feed, jump) {
  const node = make("article", "pd-block");
  const head = make("div", "pd-block-head");
  const who = make("strong");
  const facts = make("span", "pd-facts");
  const acts = make("span", "pd-acts");
  head.append(who, facts, acts);
  const text = make("div", "pd-block-text");
  const body = make("div", "pd-body");
  const said = make("div", "pd-said", { role: "status" });
  const press = presser(feed, said);
  const detail = taskDetails();
  let block = null;
  const copy = textButton("copy", "", () => copyText(copy, textOf(block)));
  const edit = textButton("edit", "", () => rewrite.open(block.text));
  const fork = textButton("fork", "", () =>
    press("fork", { entry: block.entry }, { magic: `%durable fork ${block.entry}`, words: "forking…" }),
  );
  const task = textButton("", "", () => {
    if (jump?.(block.task)) return;
    if (!detail.node.hidden) detail.node.hidden = true;
    else press("task", { task: block.task }, { magic: `%durable task ${block.task}`, done: detail.show });
  });
  const rewrite = rewriting((wanted, done) => press("again", { entry: block.entry, text: wanted }, { words: "asking…", done }), () => edit);
  for (const each of [copy, edit, fork, task]) each.className = "pd-link";
  acts.append(copy, edit, fork, task);
  node.append(head, text, body, rewrite.node, detail.node, said);
  const showParts = parts(body, feed);
  const showText = markdownView(text);
  return {
    node,
    show(next) {
      block = next;
      node.dataset.role = block.role;
      node.classList.toggle("pd-struck", block.struck);
      put(who, block.who);
      put(facts, block.facts.join(" · "));
      toggle(text, Boolean(block.text));
      if (block.role === "user") {
        text.classList.add("pd-md");
        showText(block.text);
      } else if (block.text) put(text, block.text);
      toggle(body, block.role === "assistant");
      showParts(block.items);
      body.classList.toggle("pd-empty", block.items.length === 0 && block.entry === null);
      const name = block.entry === null ? "the answer that is going on" : `entry ${block.entry}`;
      copy.setAttribute("aria-label", `Copy ${name}`);
      edit.setAttribute("aria-label", `Edit ${name} and run it again`);
      edit.title = "Edit this and run it again, on a new branch";
      fork.setAttribute("aria-label", `Fork from ${name}`);
      fork.title = "Go on from here on a new branch";
      put(task, `task ${block.task}`);
      task.setAttribute("aria-label", `Show task ${block.task}`);
      toggle(copy, Boolean(textOf(block)));
      toggle(edit, feed.view.writes && block.role === "user" && block.entry !== null);
      toggle(fork, feed.view.writes && block.entry !== null);
      toggle(task, block.task !== null);
    },
  };
}

function textOf(block) {
  const texts = block.items.filter((item) => item.kind === "text" && !item.struck).map((item) => item.text);
  return block.text || texts.join("\n\n");
}

// What waits in the inbox, each with a button that takes it back.
function chips(feed, said) {
  const node = make("ul", "pd-chips", { "aria-label": "Inbox" });
  const press = presser(feed, said);
  const kept = new Map();
  return {
    node,
    show(waiting) {
      const seen = new Set(waiting.map((item) => item.id));
      for (const [id, chip] of kept) {
        if (seen.has(id)) continue;
        chip.remove();
        kept.delete(id);
      }
      for (const item of waiting) {
        if (kept.has(item.id)) continue;
        const chip = make("li", "pd-chip");
        const mode = make("b");
        put(mode, item.mode);
        const words = make("span");
        put(words, item.text);
        words.title = item.text;
        const back = textButton("withdraw", `Withdraw ${item.mode}: ${item.text}`, () =>
          press("withdraw", { submission: item.id }, { magic: `%durable withdraw ${item.id}`, words: "withdrawing…" }),
        );
        back.className = "pd-link";
        chip.append(mode, words, back);
        kept.set(item.id, chip);
        node.append(chip);
      }
      toggle(node, waiting.length > 0);
    },
  };
}

// A place to write; what is written stays until the kernel has it.
function composing(feed, said) {
  const node = make("form", "pd-compose");
  const text = make("textarea", "pd-input", { rows: "2", "aria-label": "Message", placeholder: "Ask something. Shift+Enter sends." });
  const row = make("div", "pd-row");
  const send = textButton("Send", "Send this message");
  const steer = textButton("Steer", "Steer the run with this message");
  const follow = textButton("Follow up", "Ask this after the run");
  steer.title = "Into the run that is going on, after its present round of tools";
  follow.title = "After the run that is going on";
  send.type = "submit";
  send.classList.add("pd-primary");
  steer.addEventListener("click", () => submit("steer"));
  follow.addEventListener("click", () => submit("follow_up"));
  row.append(send, steer, follow);
  node.append(text, row);
  const press = presser(feed, said);
  let sending = false;

  function submit(mode) {
    const wanted = text.value;
    if (!wanted.trim() || sending || !usable()) {
      text.focus();
      return;
    }
    sending = true;
    const done = () => {
      sending = false;
      if (text.value === wanted) text.value = "";
      show();
    };
    const failed = () => {
      sending = false;
      show();
    };
    const magic = { send: "%durable ask", steer: "%durable steer", follow_up: "%durable follow" }[mode];
    press("send", { text: wanted, mode }, { magic: `${magic} …`, words: "sending…", done, failed });
    show();
  }

  function usable() {
    return !feed.lost && feed.view.state !== "over" && feed.view.writes;
  }

  function show() {
    const { busy } = feed.view;
    toggle(node, feed.view.writes);
    toggle(send, !busy);
    toggle(steer, busy);
    toggle(follow, busy);
    text.placeholder = busy ? "Write to the run. Shift+Enter asks it afterwards." : "Ask something. Shift+Enter sends.";
    text.disabled = !usable();
    for (const each of [send, steer, follow]) each.setAttribute("aria-disabled", String(sending || !usable()));
  }

  node.addEventListener("submit", (event) => {
    event.preventDefault();
    submit("send");
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    submit(feed.view.busy ? "follow_up" : "send");
  });
  return { node, show };
}

export function mountConversation(feed, model, el, { jump = null } = {}) {
  const root = make("section", "pd pd-card pd-talk", { "aria-label": "Conversation" });
  const header = make("div", "pd-header");
  const badge = make("span", "pd-badge", { role: "status" });
  const sign = icon();
  const word = make("span");
  badge.append(sign.node, word);
  const facts = make("span", "pd-facts");
  const time = make("span", "pd-time");
  const left = make("div", "pd-header-left");
  left.append(badge, time, facts);
  const said = make("span", "pd-said", { role: "status" });
  const press = presser(feed, said);
  const back = textButton("", "", () => press("open", { conversation: feed.view.origin }));
  const retry = textButton("Retry", "Go on after the run that failed", () =>
    press("retry", {}, { magic: "%durable retry", words: "trying again…" }),
  );
  const stop = textButton("Stop", "Stop this run", () => {
    if (stop.getAttribute("aria-disabled") !== "true") press("stop", {}, { magic: "%durable stop", words: "stop is asked for…" });
  });
  stop.title = "Stop the run and withdraw what waits; %durable stop does the same";
  header.append(left, back, retry, stop);
  const problem = make("div", "pd-problem");
  const log = make("div", "pd-log", { role: "log", tabindex: "0", "aria-label": "Transcript", "aria-live": "polite" });
  const older = textButton("Show older entries", "Show older entries", () => press("older"));
  const nothing = make("div", "pd-nothing");
  nothing.textContent = "Nothing was said yet.";
  log.append(older, nothing);
  const inbox = chips(feed, said);
  const compose = composing(feed, said);
  const footer = make("div", "pd-footer");
  const usage = make("span");
  footer.append(usage, said);
  root.append(header, problem, log, inbox.node, compose.node, footer);
  el.append(root);
  const release = ownKeys(root);

  const kept = new Map();
  let passes = () => true;
  let lostAt = null;

  function showBlocks(view) {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
    const first = log.querySelector(".pd-block");
    const top = first?.offsetTop ?? 0;
    const seen = new Set(view.order);
    for (const [key, part] of kept) {
      if (seen.has(key)) continue;
      part.node.remove();
      kept.delete(key);
    }
    let place = nothing.nextSibling;
    for (const key of view.order) {
      let part = kept.get(key);
      if (!part) {
        part = blockPart(feed, jump);
        kept.set(key, part);
      }
      if (part.node === place) place = place.nextSibling;
      else log.insertBefore(part.node, place);
      part.show(view.blocks[key]);
      toggle(part.node, passes(view.blocks[key]));
    }
    toggle(older, view.earlier);
    toggle(nothing, view.order.length === 0);
    // Who reads further up goes on reading there, also when older entries come above.
    if (atEnd) log.scrollTop = log.scrollHeight;
    else if (first?.isConnected) log.scrollTop += first.offsetTop - top;
  }

  function tick() {
    const { view } = feed;
    if (feed.lost) lostAt ??= Date.now() / 1000;
    const now = (lostAt ?? Date.now() / 1000) - feed.skew;
    put(time, view.busy && view.started_at !== null ? seconds(now - view.started_at, true) : "");
    const wait = view.retry_at === null ? 0 : view.retry_at - now;
    put(word, feed.lost ? "kernel ended" : wait > 0 ? `${view.badge[1]} in ${seconds(Math.ceil(wait), true)}` : view.badge[1]);
  }

  function update() {
    const { view } = feed;
    const [shape, , tone] = feed.lost ? ["!", "", "warn"] : view.badge;
    root.dataset.state = view.state;
    root.dataset.tone = tone;
    badge.dataset.tone = tone;
    sign.show(shape);
    put(facts, view.facts.join(" · "));
    const words = feed.lost ? "everything shown is stored · run the cells again to go on" : view.problem ?? "";
    toggle(problem, Boolean(words));
    ticks(problem, words);
    showBlocks(view);
    inbox.show(view.waiting);
    compose.show();
    put(usage, view.usage.join(" · "));
    if (view.stopping) ticks(said, view.stopping);
    else if (said.dataset.text?.startsWith("stop")) ticks(said, "");
    put(back, `Back to conversation ${view.origin}`);
    const usable = !feed.lost && view.state !== "over";
    const stoppable = usable && view.writes && (view.busy || view.waiting.length > 0);
    // A button that has the focus stays until the focus moves on.
    const held = (button) => document.activeElement === button;
    toggle(back, usable && view.origin !== null);
    toggle(retry, usable && view.writes && (view.state === "failed" || held(retry)));
    stop.classList.toggle("pd-gone", !stoppable && !held(stop));
    stop.setAttribute("aria-disabled", String(!stoppable || Boolean(view.stopping)));
    tick();
  }

  function settle() {
    const live = feed.lost || feed.view.state === "over";
    root.classList.toggle("pd-settled", live);
  }

  root.addEventListener("click", (event) => {
    const button = event.target.closest?.(".pd-copy");
    if (button) copyText(button, button.parentNode.querySelector("code").textContent);
  });
  stop.addEventListener("blur", update);
  const silence = feed.listen(() => {
    update();
    settle();
  });
  const timer = setInterval(() => feed.lost || tick(), 1000);
  update();
  settle();
  // A page may attach the log after this, show it later, or make it narrower: it stays at its end through all of it.
  let following = true;
  let width = 0;
  log.addEventListener("scroll", () => {
    // An older scroll that is told after a change of width says nothing of where one reads.
    if (log.clientWidth === width) following = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  });
  const resized = new ResizeObserver(() => {
    width = log.clientWidth;
    if (following) log.scrollTop = log.scrollHeight;
  });
  resized.observe(log);
  const unmount = () => {
    clearInterval(timer);
    resized.disconnect();
    release();
    silence();
  };
  // Show only blocks for which `wanted` is true.
  unmount.filter = (wanted) => {
    passes = wanted;
    update();
  };
  return unmount;
}

export default widget(mountConversation);
