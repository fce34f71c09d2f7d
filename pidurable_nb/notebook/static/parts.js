// What the pages of all live widgets are made of: elements, signs, durations, boxes of text.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = {
  "✓": "M3 8.6 6.4 12 13 4.6",
  "✕": "M4 4l8 8M12 4l-8 8",
  "!": "M8 3v6.2M8 12.4v.6",
  "↻": "M12.9 6.2A5.3 5.3 0 1 0 13.3 9M13.2 2.8v3.5H9.7",
  "◷": "M8 2.7a5.3 5.3 0 1 0 0 10.6A5.3 5.3 0 0 0 8 2.7M8 5v3.2l2.2 1.4",
  "○": "M8 3.2a4.8 4.8 0 1 0 0 9.6 4.8 4.8 0 0 0 0-9.6",
  "■": "M4.5 4.5h7v7h-7z",
  "·": "M8 7.5v1",
};

export function make(tag, className = "", attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function put(node, text) {
  const wanted = text ?? "";
  if (node.textContent !== wanted) node.textContent = wanted;
}

// Text of which parts between backticks are shown as code.
export function ticks(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  const made = text.split(/`([^`\n]+)`/).map((part, index) => {
    if (index % 2 === 0) return part;
    const code = make("code");
    code.textContent = part;
    return code;
  });
  node.replaceChildren(...made);
}

export function toggle(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

export function icon() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "pd-icon");
  const path = document.createElementNS(SVG, "path");
  svg.append(path);
  return {
    node: svg,
    show(sign) {
      const spins = sign === "◐";
      const shape = spins ? "M8 2.7A5.3 5.3 0 1 1 2.7 8" : SHAPES[sign] ?? SHAPES["·"];
      if (path.getAttribute("d") !== shape) path.setAttribute("d", shape);
      svg.classList.toggle("pd-spin", spins);
      svg.classList.toggle("pd-solid", sign === "■");
    },
  };
}

export function seconds(value, running) {
  const time = Math.max(0, value);
  if (!running && time < 0.0995) return `${Math.floor(time * 1000 + 0.5)} ms`;
  if (!running && time < 9.95) return `${time.toFixed(1)} s`;
  const whole = running ? Math.floor(time) : Math.floor(time + 0.5);
  const two = (part) => String(part).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

// A bounded box of plain text that stays at its end while it grows, unless someone scrolled away from there.
export function box(label) {
  const node = make("div", "pd-box");
  const title = make("div", "pd-box-title");
  title.textContent = label;
  const pre = make("pre", "", { tabindex: "0", "aria-label": label });
  const text = document.createTextNode("");
  pre.append(text);
  node.append(title, pre);
  return {
    node,
    show(wanted) {
      toggle(node, Boolean(wanted));
      const next = wanted ?? "";
      if (text.data === next) return;
      const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 8;
      if (next.startsWith(text.data)) text.appendData(next.slice(text.data.length));
      else text.data = next;
      if (atEnd) pre.scrollTop = pre.scrollHeight;
    },
  };
}

export function copyText(button, text) {
  const said = (words) => {
    button.textContent = words;
    setTimeout(() => (button.textContent = "copy"), 1500);
  };
  if (!navigator.clipboard) said("not allowed");
  else navigator.clipboard.writeText(text).then(() => said("copied"), () => said("not allowed"));
}

// A button of words; `name` is what a screen reader says.
export function textButton(words, name = "", act = null) {
  const button = make("button", "pd-button", { type: "button" });
  if (name) button.setAttribute("aria-label", name);
  button.textContent = words;
  if (act) button.addEventListener("click", act);
  return button;
}

// How buttons speak to the kernel: `press(name, value, options)` says in `said` what becomes of it.
export function presser(feed, said) {
  return (name, value = {}, { magic = "", words = "", done = () => {}, failed = () => {} } = {}) => {
    ticks(said, words);
    feed.press(name, value, {
      magic,
      tell(news) {
        const problem = news.late ?? news.error;
        ticks(said, problem ?? (news.done === undefined ? words : ""));
        if (news.done !== undefined) done(news.done);
        else if (problem && !news.waits) failed();
      },
    });
  };
}

// Keys without Ctrl, Alt or Cmd mean what they mean in a page, also where a notebook gives them other meanings.
export function ownKeys(root) {
  const look = (event) => {
    if (!root.contains(event.target)) return;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !(event.ctrlKey || event.altKey || event.metaKey));
  };
  window.addEventListener("keydown", look, true);
  return () => window.removeEventListener("keydown", look, true);
}
