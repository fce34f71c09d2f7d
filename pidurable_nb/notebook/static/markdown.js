// Markdown as DOM nodes, for text that grows.
//
// The dialect is that of markdown.py: CommonMark with tables and strikethrough, without underlined headings, code by
// indentation, link definitions and HTML. Nodes are made with createElement and text only, never from a string of HTML;
// a link's address is http, https or mailto, an image is a link with its description.
//
// `markdownView(host)` keeps what it has shown: text that grew at its end costs a parse of its last block, and the
// nodes of that block are changed in place, so that a selection, the focus and a screen reader's place survive.

const SAFE_LINK = /^(?:https?:\/\/|mailto:)[^\u0000-\u0020]+$/i;
const MAX_DEPTH = 20;
const MAX_LABEL = 1000;
const MAX_BRACKETS = 50;
const MAX_DELIMITERS = 1000;

// -- blocks

// No line is code by its indentation, so a block may start at any; only inside a paragraph does a deep line stay text.
const FENCE = /^( *)(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ *(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ *(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ *> ?/;
const MARKER = /^( *)([-+*]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/;
const DELIMITERS = /^ *(?=[^ ]*[-:|])\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

function isBlank(line) {
  return /^[ \t]*$/.test(line);
}

function untab(line) {
  const lead = /^[ \t]*/.exec(line)[0];
  if (!lead.includes("\t")) return line;
  let width = 0;
  for (const char of lead) width += char === "\t" ? 4 - (width % 4) : 1;
  return " ".repeat(width) + line.slice(lead.length);
}

function indentOf(line) {
  return /^ */.exec(line)[0].length;
}

function cells(line) {
  const found = [];
  let cell = "";
  for (let at = 0; at < line.length; at += 1) {
    if (line[at] === "\\" && line[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (line[at] === "|") {
      found.push(cell);
      cell = "";
    } else cell += line[at];
  }
  found.push(cell);
  if (found.length && isBlank(found[0])) found.shift();
  if (found.length && isBlank(found[found.length - 1])) found.pop();
  return found.map((text) => text.trim());
}

function tableAt(lines, at) {
  const head = lines[at];
  const rule = lines[at + 1];
  if (rule === undefined || !head.includes("|") || !DELIMITERS.test(rule)) return null;
  if (/^ *- /.test(rule)) return null;
  const names = cells(head.trim());
  const marks = rule.trim().replace(/^\||\|$/g, "").split("|").map((mark) => mark.trim());
  if (!names.length || names.length !== marks.length) return null;
  const align = marks.map((mark) => (/^:.*:$/.test(mark) ? "center" : mark.endsWith(":") ? "right" : mark.startsWith(":") ? "left" : ""));
  return { names, align };
}

function markerAt(line) {
  if (RULE.test(line)) return null;
  const match = MARKER.exec(line);
  if (!match) return null;
  const [, lead, mark, tabs = "", rest = ""] = match;
  const edge = lead.length + mark.length;
  const gap = untab(" ".repeat(edge) + tabs).slice(edge);
  const empty = isBlank(rest);
  const pad = empty || gap.length > 4 ? 1 : gap.length;
  const ordered = mark.length > 1;
  return {
    ordered,
    type: ordered ? mark.slice(-1) : mark,
    start: ordered ? parseInt(mark, 10) : 1,
    width: edge + pad,
    empty,
    first: empty ? "" : " ".repeat(gap.length > 4 ? gap.length - 1 : 0) + rest,
  };
}

function interrupts(lines, at, tables = true) {
  const line = lines[at];
  if (indentOf(line) > 3) return false;
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  if (tables && tableAt(lines, at)) return true;
  const marker = markerAt(line);
  return marker !== null && !marker.empty && (!marker.ordered || marker.start === 1);
}

// Marks a line that is in its container only as the rest of a paragraph, and can be nothing else there.
const LAZY = "\u0001";

// Whether a line that left its container still belongs to the paragraph at the end of that container.
function endsInParagraph(lines) {
  // Its last lines tell in all but contrived cases, and keep the work on hostile text linear.
  const blocks = parseBlocks(lines.slice(-50), MAX_DEPTH - 3);
  let last = blocks[blocks.length - 1];
  while (last && (last.kind === "quote" || last.kind === "list")) {
    const inner = last.kind === "quote" ? last.blocks : last.items[last.items.length - 1];
    last = inner[inner.length - 1];
  }
  return last !== undefined && last.kind === "p";
}

function isLazy(inner, lines, at) {
  if (inner.length === 0 || isBlank(inner[inner.length - 1])) return false;
  return !markerAt(lines[at]) && !interrupts(lines, at, false) && endsInParagraph(inner);
}

function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  let spaced = false;
  while (at < lines.length) {
    const line = lines[at];
    if (isBlank(line)) {
      spaced = true;
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    block.line = at;
    block.spaced = spaced;
    spaced = false;
    blocks.push(block);
    at = block.end;
    if (block.kind === "list" && block.spacedEnd) spaced = true;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const table = tableAt(lines, at);
  if (table) {
    const rows = [];
    let next = at + 2;
    while (next < lines.length && !isBlank(lines[next]) && !markerAt(lines[next]) && !interrupts(lines, next, false)) {
      const row = cells(lines[next].trim());
      rows.push(table.names.map((_, column) => row[column] ?? ""));
      next += 1;
    }
    return { kind: "table", ...table, rows, end: next };
  }
  let match = FENCE.exec(line);
  if (match) return fenceAt(lines, at, match);
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return quoteAt(lines, at, depth);
    match = RULE.test(line);
    if (match) return { kind: "hr", end: at + 1 };
    const marker = markerAt(line);
    if (marker) return listAt(lines, at, marker, depth);
  }
  match = HEADING.exec(line);
  if (match) {
    const text = (match[2] ?? "").replace(/(?:^|[ \t]+)#+[ \t]*$/, "").trim();
    return { kind: `h${match[1].length}`, text, end: at + 1 };
  }
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !interrupts(lines, next)) next += 1;
  const text = lines.slice(at, next).map((part) => part.replace(/^[ \t\u0001]+/, "")).join("\n");
  return { kind: "p", text: text.replace(/[ \t]+$/, ""), end: next };
}

function fenceAt(lines, at, [, lead, fence]) {
  const close = new RegExp(`^ *${fence[0]}{${fence.length},}[ \\t]*$`);
  const inside = [];
  let next = at + 1;
  while (next < lines.length && !close.test(lines[next])) {
    inside.push(lines[next].replace(new RegExp(`^ {0,${lead.length}}`), ""));
    next += 1;
  }
  return { kind: "code", text: inside.join("\n"), end: Math.min(next + 1, lines.length) };
}

function quoteAt(lines, at, depth) {
  const inside = [];
  let next = at;
  while (next < lines.length && !isBlank(lines[next])) {
    if (QUOTE.test(lines[next])) inside.push(untab(lines[next].replace(QUOTE, "")));
    else if (isLazy(inside, lines, next)) inside.push(LAZY + lines[next].trimStart());
    else break;
    next += 1;
  }
  return { kind: "quote", blocks: parseBlocks(inside, depth + 1), end: next };
}

function listAt(lines, at, first, depth) {
  const items = [];
  let next = at;
  let loose = false;
  let trailing = false;
  for (let marker = first; marker !== null; ) {
    const inside = [marker.first];
    next += 1;
    while (next < lines.length) {
      const line = lines[next];
      if (isBlank(line)) {
        if (inside.length === 1 && marker.empty) break;
        inside.push("");
      } else if (indentOf(line) >= marker.width) inside.push(line.slice(marker.width));
      else if (isLazy(inside, lines, next)) inside.push(LAZY + line.trimStart());
      else break;
      next += 1;
    }
    let blanks = 0;
    while (inside.length > 1 && inside[inside.length - 1] === "") {
      inside.pop();
      blanks += 1;
    }
    while (next < lines.length && isBlank(lines[next])) {
      blanks += 1;
      next += 1;
    }
    const blocks = parseBlocks(inside, depth + 1);
    if (blocks.some((block, index) => index > 0 && block.spaced)) loose = true;
    items.push(blocks);
    const following = next < lines.length ? markerAt(lines[next]) : null;
    trailing = blanks > 0;
    marker = following !== null && following.type === first.type && following.ordered === first.ordered ? following : null;
    if (marker !== null && blanks > 0) loose = true;
  }
  return { kind: "list", ordered: first.ordered, start: first.start, loose, items, end: next, spacedEnd: trailing };
}

// -- inline parts

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™",
  hellip: "…", mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", times: "×", divide: "÷", deg: "°",
  plusmn: "±", middot: "·", bull: "•", larr: "←", rarr: "→", uarr: "↑", darr: "↓", le: "≤", ge: "≥", ne: "≠", euro: "€",
  pound: "£", sect: "§", laquo: "«", raquo: "»", infin: "∞", alpha: "α", beta: "β", gamma: "γ", delta: "δ", pi: "π",
  sigma: "σ", lambda: "λ", mu: "μ", micro: "µ", check: "✓" };

function element(tag, children = [], attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function anchor(address, children) {
  return element("a", children, { href: address, target: "_blank", rel: "noopener noreferrer" });
}

function unescape(text) {
  return text.replace(/\\([!-/:-@[-`{-~])/g, "$1").replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, entity);
}

function entity(whole, decimal, hexadecimal, name) {
  if (name !== undefined) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
  const code = decimal !== undefined ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
  const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return valid ? String.fromCodePoint(code) : "\ufffd";
}

// The end of a run of code that starts at `at`, or null where none closes it.
function codeSpan(text, at) {
  const ticks = /^`+/.exec(text.slice(at))[0];
  const end = new RegExp(`(?<!\`)\`{${ticks.length}}(?!\`)`, "g");
  end.lastIndex = at + ticks.length;
  const match = end.exec(text);
  if (!match) return { ticks, end: null };
  let inside = text.slice(at + ticks.length, match.index).replace(/\n/g, " ");
  if (/^ .*[^ ].* $/.test(inside) || /^ [^ ] $/.test(inside)) inside = inside.slice(1, -1);
  return { ticks, inside, end: match.index + ticks.length };
}

const AUTOLINK = /^<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)*)>/i;

class Inline {
  constructor(text) {
    this.text = text;
    this.links = new Map();
  }

  // The link or image whose "[" is at `at`: its label, its address and its end; null where there is none.
  link(at, depth = 0) {
    if (!this.links.has(at)) {
      this.links.set(at, null);
      if (depth < MAX_BRACKETS) this.links.set(at, this.findLink(at, depth));
    }
    return this.links.get(at);
  }

  findLink(at, depth) {
    const end = this.labelEnd(at, depth);
    if (end === null || this.text[end + 1] !== "(") return null;
    const rest = /^\(\s*(?:<((?:[^<>\n\\]|\\.)*)>|((?:[^\s\\()<]|\\.|\((?:[^\s\\()]|\\.)*\))(?:[^\s\\()]|\\.|\((?:[^\s\\()]|\\.)*\))*)|)(?:\s+(?:"(?:[^"\\]|\\[^])*"|'(?:[^'\\]|\\[^])*'|\((?:[^()\\]|\\[^])*\)))?\s*\)/.exec(this.text.slice(end + 1, end + 4001));
    if (!rest) return null;
    const address = unescape(rest[1] ?? rest[2] ?? "").replace(/[\u0000-\u0020"<>\\^`{|}]/g, encodeURIComponent);
    return { label: this.text.slice(at + 1, end), address, end: end + 1 + rest[0].length };
  }

  labelEnd(at, depth) {
    let level = 1;
    const stop = Math.min(this.text.length, at + MAX_LABEL);
    for (let place = at + 1; place < stop; place += 1) {
      const char = this.text[place];
      if (char === "\\") place += 1;
      else if (char === "`") {
        const span = codeSpan(this.text, place);
        place = (span.end ?? place + span.ticks.length) - 1;
      } else if (char === "<") {
        const match = AUTOLINK.exec(this.text.slice(place, place + 2000));
        if (match) place += match[0].length - 1;
      } else if (char === "[") {
        const inner = this.link(place, depth + 1);
        if (inner && SAFE_LINK.test(inner.address)) {
          if (this.text[place - 1] !== "!") return null;
          place = inner.end - 1;
        } else level += 1;
      } else if (char === "]") {
        level -= 1;
        if (level === 0) return place;
      }
    }
    return null;
  }

  nodes(depth) {
    const { text } = this;
    const parts = [];
    let plain = "";
    let delimiters = 0;
    const flush = () => {
      if (plain) parts.push(document.createTextNode(plain));
      plain = "";
    };
    const push = (node) => {
      flush();
      parts.push(node);
    };
    for (let at = 0; at < text.length; ) {
      const char = text[at];
      if (char === "\\" && text[at + 1] === "\n") {
        push(element("br"));
        at += 2;
      } else if (char === "\\" && at + 1 < text.length && ESCAPABLE.test(text[at + 1])) {
        plain += text[at + 1];
        at += 2;
      } else if (char === "\n") {
        const hard = / {2,}$/.test(plain);
        plain = plain.replace(/ +$/, "");
        if (hard) push(element("br"));
        else plain += "\n";
        at += 1;
      } else if (char === "`") {
        const span = codeSpan(text, at);
        if (span.end === null) {
          plain += span.ticks;
          at += span.ticks.length;
        } else {
          push(element("code", [span.inside]));
          at = span.end;
        }
      } else if (char === "<" && AUTOLINK.test(text.slice(at, at + 2000))) {
        const [whole, inside] = AUTOLINK.exec(text.slice(at, at + 2000));
        push(anchor(/^(?:https?:|mailto:)/i.test(inside) ? inside : `mailto:${inside}`, [inside]));
        at += whole.length;
      } else if ((char === "[" || (char === "!" && text[at + 1] === "[")) && depth < MAX_DEPTH) {
        const image = char === "!";
        const link = this.link(at + (image ? 1 : 0));
        if (link && SAFE_LINK.test(link.address)) {
          const inside = inlineNodes(link.label, depth + 1);
          if (image) {
            const words = inside.map((node) => node.textContent).join("") || "image";
            push(anchor(link.address, [words]));
          } else push(anchor(link.address, unlinked(inside)));
          at = link.end;
        } else {
          plain += image ? "![" : "[";
          at += image ? 2 : 1;
        }
      } else if (char === "*" || char === "_" || (char === "~" && text[at + 1] === "~")) {
        const run = new RegExp(`^\\${char}+`).exec(text.slice(at))[0];
        if (delimiters > MAX_DELIMITERS) plain += run;
        else {
          const mark = delimiter(text, at, char, run.length);
          const odd = char === "~" && run.length % 2 === 1;
          if (odd) {
            mark.length -= 1;
            mark.odd = true;
            push(document.createTextNode("~"));
          }
          delimiters += 1;
          push(mark);
        }
        at += run.length;
      } else if (char === "&") {
        const match = /^&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,32}));/i.exec(text.slice(at, at + 40));
        plain += match ? entity(...match) : "&";
        at += match ? match[0].length : 1;
      } else {
        const run = /^[^\\\n`<[!*_~&]+/.exec(text.slice(at, at + 4000));
        plain += run ? run[0] : char;
        at += run ? run[0].length : 1;
      }
    }
    flush();
    return emphasised(parts);
  }
}

// A link holds no link: those of images inside it become their words.
function unlinked(nodes) {
  return nodes.map((node) => {
    if (node.nodeName === "A") return document.createTextNode(node.textContent);
    for (const link of node.querySelectorAll?.("a") ?? []) link.replaceWith(link.textContent);
    return node;
  });
}

function delimiter(text, at, char, length) {
  const before = /(?:[\ud800-\udbff][\udc00-\udfff]|[^])$/.exec(text.slice(Math.max(0, at - 2), at))?.[0] ?? " ";
  const after = at + length >= text.length ? " " : String.fromCodePoint(text.codePointAt(at + length));
  const space = (other) => /\s/.test(other);
  const mark = (other) => PUNCTUATION.test(other);
  const left = !space(after) && (!mark(after) || space(before) || mark(before));
  const right = !space(before) && (!mark(before) || space(after) || mark(after));
  const word = char === "_";
  return {
    delimiter: char,
    length,
    whole: length,
    opens: left && (!word || !right || mark(before)),
    closes: right && (!word || !left || mark(after)),
  };
}

function emphasised(parts) {
  const settle = (part) => (part.delimiter ? document.createTextNode(part.delimiter.repeat(part.length)) : part);
  for (let close = 0; close < parts.length; close += 1) {
    const closer = parts[close];
    if (!closer.delimiter || !closer.closes) continue;
    while (closer.length > 0) {
      let open = close - 1;
      for (; open >= 0; open -= 1) {
        const opener = parts[open];
        if (opener.delimiter !== closer.delimiter || !opener.opens || opener.length === 0) continue;
        const odd = (opener.closes || closer.opens) && (opener.whole + closer.whole) % 3 === 0;
        if (closer.delimiter !== "~" && odd && (opener.whole % 3 || closer.whole % 3)) continue;
        break;
      }
      if (open < 0) break;
      const opener = parts[open];
      const used = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
      const inside = parts.slice(open + 1, close).filter((part) => part.length !== 0 || !part.delimiter).map(settle);
      const tag = closer.delimiter === "~" ? "s" : used === 2 ? "strong" : "em";
      // Of an odd run of tildes the first is text, and stands outside of what the others end.
      const outside = closer.odd ? [inside.pop()] : [];
      closer.odd = false;
      parts.splice(open + 1, close - open - 1, element(tag, inside), ...outside);
      opener.length -= used;
      closer.length -= used;
      close = open + 2 + outside.length;
      if (opener.length === 0) {
        parts.splice(open, 1);
        close -= 1;
      }
    }
    if (closer.length === 0) {
      parts.splice(close, 1);
      close -= 1;
    }
  }
  return parts.map(settle);
}

function inlineNodes(text, depth = 0) {
  return new Inline(text).nodes(depth);
}

// -- nodes

function blockNode(block) {
  switch (block.kind) {
    case "code":
      return element("div", [
        element("pre", [element("code", [block.text])], { tabindex: "0" }),
        element("button", ["copy"], { type: "button", class: "pd-copy", "aria-label": "Copy this code" }),
      ], { class: "pd-code" });
    case "hr":
      return element("hr");
    case "quote":
      return element("blockquote", block.blocks.map(blockNode));
    case "list": {
      const items = block.items.map((blocks) => element("li", blocks.flatMap((inner) => (inner.kind === "p" && !block.loose ? inlineNodes(inner.text) : [blockNode(inner)]))));
      return element(block.ordered ? "ol" : "ul", items, block.ordered && block.start !== 1 ? { start: String(block.start) } : {});
    }
    case "table": {
      const row = (tag, texts) => element("tr", texts.map((text, column) => element(tag, inlineNodes(text), block.align[column] ? { "data-align": block.align[column] } : {})));
      const parts = [element("thead", [row("th", block.names)])];
      if (block.rows.length) parts.push(element("tbody", block.rows.map((texts) => row("td", texts))));
      return element("table", parts);
    }
    default:
      return element(block.kind, inlineNodes(block.text));
  }
}

// Make `old` equal to `made` with as few changes as possible; returns the node that then stands in its place.
function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) {
    old.replaceWith(made);
    return made;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data === made.data) return old;
    if (made.data.startsWith(old.data)) old.appendData(made.data.slice(old.data.length));
    else old.data = made.data;
    return old;
  }
  if (old.classList.contains("pd-copy")) return old;
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const children = [...made.childNodes];
  children.forEach((child, index) => {
    if (index < old.childNodes.length) morph(old.childNodes[index], child);
    else old.append(child);
  });
  while (old.childNodes.length > children.length) old.lastChild.remove();
  return old;
}

export function markdownView(host) {
  let shown = "";
  let settled = 0; // where the last block starts: what is before it cannot change any more
  let before = 0; // how many nodes are before it
  return function show(text) {
    if (text === shown) return;
    if (!text.startsWith(shown)) {
      settled = 0;
      before = 0;
    }
    shown = text;
    const tail = text.slice(settled).replace(/\r\n?/g, "\n");
    const lines = tail.split("\n").map(untab);
    const blocks = parseBlocks(lines);
    blocks.forEach((block, index) => {
      const old = host.childNodes[before + index];
      const made = blockNode(block);
      if (old) morph(old, made);
      else host.append(made);
    });
    while (host.childNodes.length > before + blocks.length) host.lastChild.remove();
    if (blocks.length > 1 && !text.includes("\r")) {
      const raw = tail.split("\n");
      const last = blocks[blocks.length - 1].line;
      for (let line = 0; line < last; line += 1) settled += raw[line].length + 1;
      before += blocks.length - 1;
    }
  };
}
