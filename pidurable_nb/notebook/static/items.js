// The parts of an answer: Markdown that grows, folded thinking, notices, and calls of tools as cards.

import { markdownView } from "./markdown.js";
import { box, icon, make, put, ticks, toggle } from "./parts.js";

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

// Buttons that decide about a call which waits for a person.
function decision(feed, home) {
  const node = make("div", "pd-decision", { role: "group", "aria-label": "Decide about this call" });
  const row = make("div", "pd-row");
  const said = make("div", "pd-said", { role: "status" });
  const editor = make("label", "pd-field");
  const text = make("textarea", "pd-input pd-mono", { rows: "4", spellcheck: "false" });
  editor.append("arguments, as a JSON object", text);
  const reason = make("label", "pd-field");
  const note = make("input", "pd-input", { type: "text" });
  reason.append("what the model is told (may stay empty)", note);
  const button = (words, name, act) => {
    const made = make("button", "pd-button", { type: "button", "aria-label": name });
    made.textContent = words;
    made.addEventListener("click", () => made.getAttribute("aria-disabled") !== "true" && act());
    row.append(made);
    return made;
  };
  let ask = null;
  let mode = "";
  let sent = false;
  const approve = button("Approve", "Approve this call", () => (mode ? send() : decide({ approve: true })));
  const edit = button("Edit arguments", "Edit the arguments of this call", () => open("edit", text));
  const deny = button("Deny", "Deny this call", () => (mode ? send() : open("deny", note)));
  const cancel = button("Cancel", "Cancel, and decide later", () => open(""));
  approve.classList.add("pd-primary");
  node.append(editor, reason, row, said);

  function open(next, field = null) {
    const before = mode;
    mode = next;
    put(said, "");
    show(ask);
    if (field) field.focus();
    else if (before) (before === "edit" ? edit : deny).focus();
  }

  function send() {
    if (mode === "deny") {
      decide({ approve: false, note: note.value.trim() || null });
      return;
    }
    let given;
    try {
      given = JSON.parse(text.value);
    } catch (error) {
      put(said, `that is not JSON: ${error.message}`);
      text.focus();
      return;
    }
    if (given === null || typeof given !== "object" || Array.isArray(given)) put(said, "arguments are a JSON object, such as {\"days\": 3}");
    else decide({ approve: true, arguments: given });
  }

  function decide(choice) {
    sent = true;
    put(said, choice.approve ? "approved…" : "denied…");
    show(ask);
    feed.press("decide", { call: ask.call, ...choice }, {
      magic: `%durable ${choice.approve ? "approve" : "deny"} ${ask.call}`,
      tell(news) {
        const problem = news.late ?? news.error;
        if (!problem) return;
        if (!news.waits) sent = false;
        ticks(said, problem);
        show(ask);
      },
    });
  }

  function show(asked) {
    if (asked?.call !== ask?.call) {
      mode = "";
      sent = false;
      text.value = asked?.arguments ?? "";
      note.value = "";
      ticks(said, "");
    }
    // What had the focus goes away with the question: its card takes it.
    if (!asked && ask && node.contains(document.activeElement)) home.focus();
    ask = asked;
    toggle(node, Boolean(asked));
    toggle(editor, mode === "edit");
    toggle(reason, mode === "deny");
    toggle(approve, mode !== "deny");
    toggle(edit, mode === "");
    toggle(deny, mode !== "edit");
    toggle(cancel, mode !== "");
    put(approve, mode === "edit" ? "Approve with these" : "Approve");
    for (const made of [approve, edit, deny, cancel]) made.setAttribute("aria-disabled", String(sent || feed.lost));
  }

  node.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the notebook has commands of its own
    if (event.key === "Escape" && mode) open("");
    else if (event.key === "Enter" && (event.target === note || (event.target === text && event.ctrlKey))) send();
    else return;
    event.preventDefault();
  });
  return { node, show };
}

// The images of a result. Their addresses hold them; any other address is not one of ours.
function pictures() {
  const node = make("div", "pd-pictures");
  return {
    node,
    show(addresses) {
      const ours = addresses.filter((address) => /^data:image\/(png|jpeg|gif|webp);base64,/.test(address));
      while (node.children.length > ours.length) node.lastChild.remove();
      ours.forEach((address, index) => {
        const image = node.children[index] ?? node.appendChild(make("img", ""));
        image.alt = `image ${index + 1} of the result`;
        if (image.getAttribute("src") !== address) image.src = address;
      });
      toggle(node, ours.length > 0);
    },
  };
}

function toolPart(feed) {
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
  const shown = pictures();
  const details = box("details");
  const diagnostics = make("div", "pd-diagnostics");
  const decide = decision(feed, summary);
  body.append(full, output.node, result.node, shown.node, details.node, diagnostics, decide.node);
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
      shown.show(item.pictures ?? []);
      details.show(item.details);
      put(diagnostics, item.diagnostics.map(([severity, message]) => `${severity}: ${message}`).join("\n"));
      toggle(diagnostics, item.diagnostics.length > 0);
      decide.show(item.asks);
      const parts = [full, output.node, result.node, shown.node, details.node, diagnostics, decide.node];
      toggle(body, parts.some((part) => !part.hidden));
    },
  };
}

const PARTS = { text: textPart, thinking: thinkingPart, notice: noticePart, tool: toolPart };

// Keep one part for each key, in the order of `items`; a part that stays is changed, not made again.
export function parts(host, feed) {
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
        part = PARTS[item.kind](feed);
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
