// The page of a profile: the flame graph, and what leads through it.

const ROW = 18;
const FONT = "12px ui-monospace, monospace";
const state = { view: data.first, unit: 0, inverted: false, part: "", root: null, zoom: null, at: null, boxes: [] };
const canvas = $("flames");

const figure = (number) => (state.unit ? plural(number, "block") : bytes(number));
const isChange = Boolean(data.old);

function start() {
  document.title = `cairn: heap profile ${data.name}`;
  $("title").textContent = isChange ? `Heap profile ${data.name}, compared with ${data.before}` : `Heap profile ${data.name}`;
  const rate = data.rate ? `One sample in ${bytes(data.rate)} on average.` : "Sampling was off when it was written.";
  const dropped = data.dropped ? ` There was no room for ${plural(data.dropped, "sample")}: use a larger rate.` : "";
  $("about").textContent = rate + dropped;
  data.views.forEach((name, nth) => {
    const sum = (rows) => rows.reduce((all, [size]) => all + size, 0);
    const choose = { type: "radio", name: "view", value: nth, onchange: () => change({ view: nth }) };
    if (nth === state.view) choose.checked = "";
    const size = ` ${bytes(sum(data.now[nth]))}`;
    $("views").append(element("label", {}, element("input", choose), name, element("span", { class: "soft" }, size)));
  });
  $("unit").onchange = (event) => change({ unit: Number(event.target.value) });
  $("inverted").onchange = (event) => change({ inverted: event.target.checked });
  $("search").oninput = (event) => search(event.target.value);
  $("out").onclick = () => zoom(state.zoom.parent);
  $("whole").onclick = () => zoom(state.root);
  $("legend").append(...legend());
  canvas.onmousemove = (event) => showTip(lines(under(event)), event);
  canvas.onmouseleave = () => showTip(null);
  canvas.onclick = (event) => {
    const at = under(event);
    if (at) zoom(at);
  };
  canvas.onkeydown = press;
  canvas.onfocus = canvas.onblur = draw;
  onLook($("room"), draw);
  change({});
}

function legend() {
  if (!isChange) return [];
  const words = [["grew", "grew"], ["same", "as before"], ["shrank", "shrank"]];
  const part = ([name, text]) => element("span", {}, element("i", { class: "swatch", style: `background: var(--${name})` }), `${text}  `);
  return words.map(part);
}

// Another view, unit or direction.
function change(parts) {
  Object.assign(state, parts);
  state.root = tree(state.view, state.unit, state.inverted);
  zoom(state.root);
  tabulate();
}

function zoom(to) {
  state.zoom = state.at = to;
  $("out").disabled = $("whole").disabled = to === state.root;
  showTip(null);
  draw();
}

function search(text) {
  state.part = text.trim().toLowerCase();
  $("search").value = text;
  draw();
}

// What is told of a frame.
function lines(at) {
  if (!at) return null;
  const all = state.root;
  const told = [at.name];
  if (at.source) told.push(at.source);
  if (isChange) {
    told.push(`${figure(at.now)}, before ${figure(at.old)}: ${signed(figure(at.now - at.old), at.now - at.old)}`);
  } else {
    told.push(`${figure(at.now)}, ${percent(at.now, all.now)} of all`);
    if (at.parent && at.parent !== all) told.push(`${percent(at.now, at.parent.now)} of ${at.parent.name}`);
  }
  return told;
}

function under(event) {
  const box = canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / ROW);
  const x = (event.clientX - box.left) / box.width;
  const hit = state.boxes.find(([at, left, width]) => at.depth === row && x >= left && x < left + width);
  return hit ? hit[0] : null;
}

function draw() {
  const width = $("room").clientWidth;
  const above = [];
  for (let at = state.zoom.parent; at; at = at.parent) above.push([at, 0, 1]);
  state.boxes = [...above, ...layout(state.zoom, 0.4 / Math.max(width, 1))];
  const depth = state.boxes.reduce((most, [at]) => Math.max(most, at.depth), 0);
  const [context, scale] = prepare(canvas, width, (depth + 1) * ROW + 1);
  context.scale(scale, scale);
  context.font = FONT;
  context.textBaseline = "middle";
  const letter = context.measureText("M").width;
  const shade = shades();
  const ink = css(colour("on-fill"));
  for (const [at, left, part] of state.boxes) {
    const [x, y, room] = [left * width, at.depth * ROW, part * width];
    context.globalAlpha = at.depth < state.zoom.depth ? 0.5 : 1;
    context.fillStyle = shade(at);
    context.fillRect(x, y, Math.max(room - (room > 3 ? 1 : 0), 0.4), ROW - 1);
    const letters = Math.floor((room - 8) / letter);
    if (letters >= 3) {
      context.fillStyle = ink;
      context.fillText(at.name.length > letters ? `${at.name.slice(0, letters - 1)}…` : at.name, x + 4, y + ROW / 2);
    }
  }
  context.globalAlpha = 1;
  outline(context, width);
  tellSums();
}

// The colour of a frame: a search, a change, or one of three so that neighbours can be told apart.
function shades() {
  const [found, same, grew, shrank] = ["found", "same", "grew", "shrank"].map(colour);
  const plain = ["flame-a", "flame-b", "flame-c"].map((name) => css(colour(name)));
  return (at) => {
    if (state.part && at.parent && matches(at, state.part)) return css(found);
    if (isChange) {
      const part = (at.now - at.old) / Math.max(at.now, at.old, 1e-9);
      return css(mix(same, part > 0 ? grew : shrank, Math.min(1, Math.abs(part))));
    }
    if (!at.parent || at.name.startsWith("[")) return css(same);
    let sum = 0;
    for (let nth = 0; nth < at.name.length; nth++) sum = (sum * 31 + at.name.charCodeAt(nth)) >>> 0;
    return plain[sum % 3];
  };
}

// Where the keys are.
function outline(context, width) {
  const box = state.boxes.find(([at]) => at === state.at);
  tell($("detail"), lines(state.at) ?? [""]);
  if (!box || document.activeElement !== canvas) return;
  const [at, left, part] = box;
  context.lineWidth = 2;
  context.strokeStyle = css(colour("ink"));
  context.strokeRect(left * width + 1, at.depth * ROW + 1, Math.max(part * width - 3, 1), ROW - 3);
}

function tellSums() {
  if (!state.part) {
    $("share").textContent = "";
    return;
  }
  const of = found(state.zoom, state.part);
  $("share").textContent = `${figure(of.now)}, ${percent(of.now, state.zoom.now)}, match`;
}

// The arrows go to what is drawn there.
function press(event) {
  const at = state.at;
  const beside = (by) => {
    const row = state.boxes.filter(([other]) => other.depth === at.depth).sort((one, other) => one[1] - other[1]);
    return row[row.findIndex(([other]) => other === at) + by]?.[0];
  };
  const shown = (other) => state.boxes.some(([one]) => one === other);
  const to = {
    ArrowUp: () => at.parent,
    ArrowDown: () => ordered(at).find(shown),
    ArrowLeft: () => beside(-1),
    ArrowRight: () => beside(1),
  }[event.key];
  if (to) {
    state.at = to() ?? at;
    draw();
  } else if (event.key === "Enter") {
    zoom(at);
  } else if (event.key === "Escape") {
    if (state.zoom.parent) zoom(state.zoom.parent);
  } else {
    return;
  }
  event.preventDefault();
}

// The table of stacks; with a second profile, those that have changed most come first.
function tabulate() {
  const { unit, view } = state;
  const all = sites(view);
  const grown = (site) => site.now[unit] - site.old[unit];
  const key = (site) => (isChange ? Math.abs(grown(site)) : site.now[unit]);
  all.sort((one, other) => key(other) - key(one));
  const whole = all.reduce((sum, site) => sum + site.now[unit], 0);
  const heads = isChange ? ["change", "bytes", "blocks"] : ["bytes", unit ? "% of blocks" : "%", "blocks"];
  const head = (text) => element("th", { scope: "col" }, text);
  $("sites-head").replaceChildren(...heads.map(head), element("th", { scope: "col", class: "name" }, "by"));
  const row = (site) => {
    const change = unit ? count(grown(site)) : bytes(grown(site));
    const cells = isChange
      ? [signed(change, grown(site)), bytes(site.now[0]), count(site.now[1])]
      : [bytes(site.now[0]), percent(site.now[unit], whole).replace(" %", ""), count(site.now[1])];
    const by = element("td", { class: "name" }, ...names(site));
    return element("tr", {}, ...cells.map((text) => element("td", {}, text)), by);
  };
  $("sites-title").textContent = `${isChange ? "What has changed most" : "Top sites"}, ${data.views[view]}`;
  fill($("sites"), all, row, 25, $("all-sites"));
}

// The innermost functions of a stack, each on a line, the first as a button that shows it in the graph.
function names(site) {
  const show = () => zoom(nodeOf(state.root, site.stack, state.inverted));
  return innermost(site.stack, 4).map(([name, source], nth) => {
    const text = source ? `${name} (${source})` : name;
    const shape = { class: nth ? "line soft" : "line link", title: text };
    return nth ? element("div", shape, `< ${text}`) : element("button", { ...shape, onclick: show }, text);
  });
}

start();
