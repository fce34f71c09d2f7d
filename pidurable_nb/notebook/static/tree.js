// Rows that open and close and are moved through with the keyboard: what the task graph and the timeline have in common.
//
// `treeList(host, options)` keeps one element for each item's key. An item says its `key`, its `level` from 1, its place
// `pos` of `size` among its siblings, whether it is `open` (null where nothing is under it), whether it is `chosen`, and
// its `label` for who listens. One row is the tab stop; it keeps the focus while rows around it come and go.

import { make } from "./parts.js";

export const ROW_HEIGHT = 26;
const PAGE = 10;

export function treeList(host, { role, row, toggle, choose }) {
  const kept = new Map();
  let items = [];
  let active = null;

  function places() {
    return new Map(items.map((item, index) => [item.key, index]));
  }

  function made(key) {
    const node = make("div", "pd-branch", { role, tabindex: "-1" });
    node.dataset.key = key;
    return { node, ...row(node) };
  }

  function show(next) {
    const before = places().get(active) ?? 0;
    const hadFocus = host.contains(document.activeElement) && document.activeElement.dataset?.key === active;
    items = next;
    const keys = new Set(items.map((item) => item.key));
    for (const [key, part] of kept) {
      if (keys.has(key)) continue;
      part.node.remove();
      kept.delete(key);
    }
    let place = host.querySelector(":scope > .pd-branch");
    for (const item of items) {
      let part = kept.get(item.key);
      if (!part) {
        part = made(item.key);
        kept.set(item.key, part);
      }
      if (part.node === place) place = place.nextElementSibling;
      else host.insertBefore(part.node, place);
      const said = {
        "aria-level": item.level,
        "aria-posinset": item.pos,
        "aria-setsize": item.size,
        "aria-expanded": item.open ?? null,
        "aria-selected": Boolean(item.chosen),
        "aria-label": item.label,
      };
      for (const [name, value] of Object.entries(said)) {
        if (value === null || value === undefined) part.node.removeAttribute(name);
        else if (part.node.getAttribute(name) !== String(value)) part.node.setAttribute(name, value);
      }
      part.node.style.setProperty("--pd-level", item.level - 1);
      part.show(item);
    }
    if (!keys.has(active)) activate(items[Math.min(before, items.length - 1)]?.key ?? null, hadFocus);
  }

  function activate(key, focus) {
    const old = kept.get(active);
    if (old) old.node.tabIndex = -1;
    active = key;
    const part = kept.get(key);
    if (!part) return;
    part.node.tabIndex = 0;
    if (!focus) return;
    part.node.focus({ preventScroll: true });
    const top = part.node.offsetTop;
    const head = host.firstElementChild?.classList.contains("pd-head") ? ROW_HEIGHT : 0;
    if (top - head < host.scrollTop) host.scrollTop = top - head;
    else if (top + ROW_HEIGHT > host.scrollTop + host.clientHeight) host.scrollTop = top + ROW_HEIGHT - host.clientHeight;
  }

  function parentOf(index) {
    for (let at = index - 1; at >= 0; at -= 1) if (items[at].level < items[index].level) return at;
    return index;
  }

  function moved(key, index) {
    const item = items[index];
    const last = items.length - 1;
    if (key === "ArrowDown") return Math.min(last, index + 1);
    if (key === "ArrowUp") return Math.max(0, index - 1);
    if (key === "PageDown") return Math.min(last, index + PAGE);
    if (key === "PageUp") return Math.max(0, index - PAGE);
    if (key === "Home") return 0;
    if (key === "End") return last;
    if (key === "ArrowRight") {
      if (item.open === false) toggle(item);
      else if (item.open) return Math.min(last, index + 1);
      return index;
    }
    if (key === "ArrowLeft") {
      if (!item.open) return parentOf(index);
      toggle(item);
      return index;
    }
    return null;
  }

  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.dataset?.key === undefined) return;
    const index = places().get(event.target.dataset.key);
    if (index === undefined) return;
    if (event.key === "Enter" || event.key === " ") choose(items[index]);
    else {
      const to = moved(event.key, index);
      if (to === null) return;
      activate(items[to].key, true);
    }
    // The notebook has shortcuts of its own for these keys.
    event.preventDefault();
    event.stopPropagation();
  });
  host.addEventListener("focusin", (event) => {
    const key = event.target.dataset?.key;
    if (key !== undefined && key !== active) activate(key, false);
  });
  host.addEventListener("click", (event) => {
    const node = event.target.closest(".pd-branch");
    const item = node && items[places().get(node.dataset.key)];
    if (!item) return;
    activate(item.key, true);
    if (event.target.closest(".pd-twist") && item.open !== null) toggle(item);
    else choose(item);
  });

  return { show, places };
}

// The sign before a row of whether it is open; rows with nothing under them keep its place.
export function twist() {
  const node = make("span", "pd-twist", { "aria-hidden": "true" });
  return {
    node,
    show(open) {
      const sign = open === null || open === undefined ? "" : open ? "▾" : "▸";
      if (node.textContent !== sign) node.textContent = sign;
    },
  };
}
