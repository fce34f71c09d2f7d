// The page's side of widgets.py: the present of one model, kept by numbered differences.
//
// `follow(model)` gives a feed: `feed.view` is the present, `feed.listen(f)` calls `f` at every change. It asks the
// kernel for the whole once at its start, which also tells how far the two clocks are apart, and whenever a number is
// missing. A feed is shared by all views of a model. `feed.lost` says that the kernel behind it is gone, where the front
// end tells; then nothing more comes.
//
// `feed.press(name, value, options)` is how a button speaks. Each press has a name of its own, and the kernel says that
// it heard it: `options.tell` is called with `{ heard: true }`, then with `{ done }` or `{ error }`; when nobody has
// heard it, with `{ late }`, words that say what to do. No button is deaf without saying so.
//
// `feed.news` is called with what the kernel has to tell that is not part of the present.

const ASK_AGAIN = 2000;
const INSIST_AFTER = 1000;
const LATE_AFTER = 2000;
const SETTLE_AFTER = 500;
const GONE = new Set(["restarting", "autorestarting", "terminating", "dead"]);
const WIDGET = "application/vnd.jupyter.widget-view+json";

function resolve(value, path) {
  const keys = path.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  const last = keys.pop();
  return [keys.reduce((inside, key) => inside[key], value), last];
}

function applyOps(view, ops) {
  let root = view;
  for (const { op, path, value } of ops) {
    if (path === "") {
      root = value;
      continue;
    }
    const [holder, key] = resolve(root, path);
    if (holder === null || typeof holder !== "object") throw new Error(`no value at ${path}`);
    if (op === "append") holder[key] += value;
    else if (op === "replace") holder[key] = value;
    else if (!Array.isArray(holder)) {
      if (op === "add") holder[key] = value;
      else delete holder[key];
    } else if (op === "add") holder.splice(key === "-" ? holder.length : Number(key), 0, value);
    else holder.splice(Number(key), 1);
  }
  return root;
}

// Put the static form in place of the live one in the notebook, if it still is there. The kernel updates the display by
// itself, but a page that was reloaded since no longer knows which output that update is for.
function settleOutput(model, { id, data }) {
  const cells = model.widget_manager?.context?.model?.cells;
  for (let at = 0; at < (cells?.length ?? 0); at += 1) {
    const outputs = cells.get(at).outputs;
    for (let index = 0; index < (outputs?.length ?? 0); index += 1) {
      if (outputs.get(index).data?.[WIDGET]?.model_id !== id) continue;
      outputs.set(index, { output_type: "display_data", data, metadata: {} });
    }
  }
}

// Say something to the kernel's main shell, whatever subshell the comm uses.
function sendPast(kernel, model, content) {
  const address = model.get("comm_id");
  if (!address || typeof kernel.sendShellMessage !== "function") return;
  const id = Math.random().toString(36).slice(2) + Date.now().toString(36);
  const header = { msg_id: id, msg_type: "comm_msg", session: kernel.clientId, username: kernel.username ?? "" };
  kernel.sendShellMessage(
    {
      channel: "shell",
      header: { ...header, date: new Date().toISOString(), version: "5.3" },
      parent_header: {},
      metadata: {},
      content: { comm_id: address, data: { method: "custom", content } },
      buffers: [],
    },
    false,
    true,
  );
}

export function follow(model) {
  const listeners = new Set();
  const feed = { seq: -1, view: null, skew: 0, lost: false, news() {}, listen, press, close };
  const kernel = model.widget_manager?.kernel;
  const page = Math.random().toString(36).slice(2, 10);
  const pressed = new Map();
  let presses = 0;
  let asked = 0;
  let ended = false;

  function changed() {
    for (const listener of listeners) listener(feed);
  }

  function take(seq, view) {
    feed.seq = seq;
    feed.view = structuredClone(view);
    changed();
  }

  function ask() {
    if (Date.now() - asked < ASK_AGAIN) return;
    asked = Date.now();
    model.send({ ask: "state", seq: feed.seq });
    setTimeout(insist, INSIST_AFTER);
  }

  // JupyterLab sends what widgets say to a subshell of the kernel, and after a reload now and then to one that it has
  // deleted: nobody hears that. What was not answered is said again past the subshells, where a press counts once.
  function insist() {
    if (!kernel?.supportsSubshells || kernel.status === "busy" || feed.lost) return;
    const due = Date.now() - INSIST_AFTER + 50;
    if (asked && asked <= due) sendPast(kernel, model, { ask: "state", seq: feed.seq });
    for (const one of pressed.values()) {
      if (one.heard || one.again || one.at > due) continue;
      one.again = true;
      sendPast(kernel, model, one.content);
    }
  }

  function press(name, value = {}, { magic = "", tell = () => {} } = {}) {
    presses += 1;
    const one = { content: { ...value, do: name, press: `${page}-${presses}` }, at: Date.now(), tell };
    pressed.set(one.content.press, one);
    try {
      model.send(one.content);
    } catch {
      // The comm is closed, which the words below say.
    }
    setTimeout(insist, INSIST_AFTER);
    setTimeout(() => {
      if (one.heard || !pressed.has(one.content.press)) return;
      const instead = magic ? `, or run \`${magic}\`` : "";
      if (feed.lost) tell({ late: "the kernel has ended; run the cells again to go on" });
      else if (kernel?.status === "busy") tell({ late: "not heard yet: it has to wait while a cell runs", waits: true });
      else tell({ late: `nobody heard that: reload the page${instead}` });
    }, LATE_AFTER);
  }

  function answered({ heard, done, error }) {
    const one = pressed.get(heard);
    if (!one) return;
    if (!one.heard) one.tell({ heard: true });
    one.heard = true;
    if (done === undefined && error === undefined) return;
    pressed.delete(heard);
    one.tell(error === undefined ? { done } : { error });
  }

  function end(form) {
    if (ended) return;
    ended = true;
    settleOutput(model, form);
    if (listeners.size === 0) model.send({ do: "close" });
  }

  function hear(message) {
    if (message?.static) {
      end(message.static);
      return;
    }
    if (message?.news) {
      feed.news(message.news);
      return;
    }
    if (typeof message?.heard === "string") {
      answered(message);
      return;
    }
    if (typeof message?.seq !== "number") return;
    if (typeof message.now === "number") {
      // An answer that had to wait for a running cell says nothing about the clocks.
      const skew = Date.now() / 1000 - message.now;
      const moved = Date.now() - asked < ASK_AGAIN && Math.abs(skew - feed.skew) > 0.2;
      if (moved) feed.skew = skew;
      asked = 0;
      if (moved) changed();
    }
    if (message.view !== undefined) {
      if (message.seq > feed.seq) take(message.seq, message.view);
    } else if (message.ops === undefined) {
      if (message.seq > feed.seq) ask();
    } else if (message.seq === feed.seq + 1) {
      try {
        feed.view = applyOps(feed.view, message.ops);
        feed.seq = message.seq;
      } catch {
        feed.seq = -1;
        ask();
        return;
      }
      changed();
    } else if (message.seq > feed.seq) ask();
  }

  function restored() {
    const state = model.get("state");
    if (state?.view && state.seq > feed.seq) take(state.seq, state.view);
    // The front end is still making the view that would have to go.
    if (state?.static) setTimeout(() => end(state.static), SETTLE_AFTER);
  }

  function listen(listener) {
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
      // Every view made room for the static form: nobody needs the live one any more.
      if (ended && listeners.size === 0 && !feed.lost) model.send({ do: "close" });
    };
  }

  function lose() {
    if (feed.lost) return;
    feed.lost = true;
    changed();
  }

  function statusChanged(_, status) {
    if (GONE.has(status)) lose();
    else if (status === "idle") insist();
  }

  function close() {
    kernel?.statusChanged?.disconnect(statusChanged);
    kernel?.disposed?.disconnect(lose);
    model.off("msg:custom", hear);
    model.off("change:state", restored);
    listeners.clear();
  }

  restored();
  kernel?.statusChanged?.connect(statusChanged);
  kernel?.disposed?.connect(lose);
  model.on("msg:custom", hear);
  model.on("change:state", restored);
  ask();
  return feed;
}

// A widget of which each view is made by `mount(feed, model, el)`, which returns what ends the view.
export function widget(mount) {
  return () => {
    let feed = null;
    return {
      initialize({ model }) {
        feed = follow(model);
        return () => feed.close();
      },
      render({ model, el }) {
        feed ??= follow(model);
        return mount(feed, model, el);
      },
    };
  };
}
