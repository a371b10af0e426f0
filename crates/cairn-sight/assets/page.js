"use strict";
// What cairn's pages have in common: data, texts of numbers, elements, what is told of a thing that is pointed at.
// A target's words get into the page as text alone (textContent), never as HTML.

const failed = (message) => { document.documentElement.dataset.error = message; };
addEventListener("error", (event) => failed(event.message));
addEventListener("unhandledrejection", (event) => failed(event.reason));

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// An element with attributes and children: elements or texts.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Bytes with three digits or more, in the unit that suits them: as the command writes them.
function bytes(number) {
  const size = Math.abs(number);
  if (size < 1024) return `${Math.round(number)} B`;
  const nth = Math.min(4, Math.floor(Math.log2(size) / 10));
  const value = number / 2 ** (10 * nth);
  return `${value.toFixed(Math.abs(value) < 100 ? 1 : 0)} ${["", "KiB", "MiB", "GiB", "TiB"][nth]}`;
}

const count = (number) => Math.round(number).toLocaleString("en");
const percent = (part, whole) => `${(whole > 0 ? (100 * part) / whole : 0).toFixed(1)} %`;
const signed = (text, number) => (number > 0 ? `+${text}` : text);
const plural = (number, what) => `${count(number)} ${what}${Math.round(number) === 1 ? "" : "s"}`;

// A colour of the style sheet as [red, green, blue].
function colour(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const mix = (one, other, part) => one.map((value, nth) => value + (other[nth] - value) * part);
const css = (rgb) => `rgb(${rgb.map(Math.round).join(" ")})`;

// Puts lines into an element, the first of them bold.
function tell(place, lines) {
  place.replaceChildren(...lines.map((line, nth) => element(nth ? "span" : "b", {}, line)));
}

const tip = element("div", { id: "tip", hidden: "" });
document.body.append(tip);

// Shows lines beside a pointer, inside the window; no lines: nothing.
function showTip(lines, event) {
  tip.hidden = !lines;
  if (!lines) return;
  tell(tip, lines);
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
  const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

// A canvas of so many CSS pixels: its context, and pixels of the screen in one of them.
function prepare(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  return [canvas.getContext("2d"), scale];
}

// Calls a function when an element's width or the colours are others.
function onLook(place, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) {
      width = now;
      // Not at once: to draw may change sizes again.
      requestAnimationFrame(draw);
    }
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// A table's body with rows of the first things, and a button for all of them.
function fill(place, things, row, some, button) {
  place.replaceChildren(...things.slice(0, some).map(row));
  button.hidden = things.length <= some;
  button.textContent = `Show all ${count(things.length)}`;
  button.onclick = () => {
    place.replaceChildren(...things.map(row));
    button.hidden = true;
  };
}
