// The Answer widget: a submission and its answer as it grows. Its words come from view.py; this file places them.

import { parts } from "./items.js";
import { widget } from "./live.js";
import { copyText, icon, make, ownKeys, put, seconds, ticks, toggle } from "./parts.js";

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
  const release = ownKeys(root);

  const showParts = parts(body, feed);
  let stopping = false;
  let late = "";
  let lostAt = null;
  let tallest = 0;

  stop.addEventListener("click", () => {
    if (stopping || feed.view.stopping || feed.lost || !feed.view.can_stop) return;
    stopping = true;
    late = "";
    update();
    feed.press("stop", {}, {
      magic: "%durable stop",
      tell(news) {
        late = news.late ?? news.error ?? "";
        if (late && !news.waits) stopping = false; // it can be pressed again
        update();
      },
    });
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
  function shrink() {
    tallest = 0;
    body.style.minHeight = "";
  }
  body.addEventListener("toggle", shrink, true);
  let width = 0;
  const resized = new ResizeObserver(([entry]) => {
    if (width && Math.abs(entry.contentRect.width - width) > 1) shrink();
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

  function asking(view, lost) {
    if (view.stopping && !lost) return view.stopping;
    if (!stopping) return late;
    return late ? `stop is asked for… ${late}; interrupting the cell does the same` : "stop is asked for…";
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
    if (!stoppable) {
      stopping = false;
      late = "";
    }
    // A button that has the focus stays until the focus moves on; before the end it keeps its place.
    const away = !stoppable && document.activeElement !== stop;
    stop.classList.toggle("pd-gone", away);
    toggle(stop, !(away && view.settled));
    stop.setAttribute("aria-disabled", String(stopping || Boolean(view.stopping) || !stoppable));
    ticks(asked, asking(view, lost));
    toggle(copy, view.settled && view.items.some((item) => item.kind === "text" && !item.struck && item.text));
    toggle(footer, !view.settled || !copy.hidden || view.usage.length > 0 || Boolean(view.note));
    tick();
    if (view.settled) {
      shrink();
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
    release();
    resized.disconnect();
    silence();
  };
}

export default widget(mountAnswer);
