// Notifications of the browser: what the kernel has to say while nobody sees the page, and the permission for it.

import { follow } from "./live.js";
import { icon, make, ownKeys, put, textButton, toggle } from "./parts.js";

const ALLOWED = {
  granted: "",
  default: "the browser has not been asked yet",
  denied: "this browser denies it: allow notifications in its settings for this site",
  none: "this browser has no notifications here: it has them on https and on localhost",
};

function allowed() {
  return typeof Notification === "undefined" ? "none" : Notification.permission;
}

function tell({ title, body, tag }) {
  if (!document.hidden || allowed() !== "granted") return;
  const shown = new Notification(title, { body, tag });
  shown.onclick = () => {
    window.focus();
    shown.close();
  };
}

function mountNotify(feed, el) {
  const root = make("section", "pd pd-notify", { "aria-label": "Notifications" });
  const sign = icon();
  const title = make("strong");
  const words = make("span", "pd-facts");
  const state = make("span", "pd-said", { role: "status" });
  const allow = textButton("Allow in this browser", "", ask);
  root.append(sign.node, title, words, state, allow);
  el.append(root);
  const release = ownKeys(root);

  function ask() {
    Notification.requestPermission().then(update, update);
  }

  function update() {
    const now = allowed();
    root.dataset.tone = now === "granted" ? "good" : "warn";
    sign.show(now === "granted" ? "✓" : "!");
    put(title, feed.view.title);
    put(words, feed.view.words);
    put(state, ALLOWED[now] ?? "");
    toggle(allow, now === "default");
  }

  const silence = feed.listen(update);
  update();
  if (allowed() === "default") ask(); // some browsers ask at once, others only when a button is pressed
  return () => {
    release();
    silence();
  };
}

export default () => {
  let feed = null;
  const begin = (model) => {
    feed = follow(model);
    feed.news = tell;
  };
  return {
    initialize({ model }) {
      begin(model);
      return () => feed.close();
    },
    render({ model, el }) {
      if (!feed) begin(model);
      return mountNotify(feed, el);
    },
  };
};
