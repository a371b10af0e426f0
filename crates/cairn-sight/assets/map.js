// The drawing of the heap map. A cell is a slice, or several where there are more slices than cells.

const CELL_MIN = 3;
const CELL_MAX = 18;
const canvas = $("map");
// The slices that are shown, those before zooming, what is drawn of others dimly, and where the keys are.
const shown = { from: 0, to: 0, before: [], kind: null, holder: null, cell: null, grid: null };

// How many cells of how many pixels and slices.
function grid(width) {
  const slices = shown.to - shown.from;
  const height = Math.max(240, Math.min(620, innerHeight * 0.7));
  const cell = Math.max(CELL_MIN, Math.min(CELL_MAX, Math.floor(Math.sqrt((width * height) / Math.max(slices, 1)))));
  const columns = Math.max(1, Math.floor(width / cell));
  const group = Math.max(1, Math.ceil(slices / (columns * Math.floor(height / cell))));
  return { cell, columns, group, count: Math.ceil(slices / group), rows: Math.ceil(slices / group / columns) };
}

// Colours of tiles, by kind and fullness in steps.
function palette() {
  const [empty, waste, needed, free, other] = ["panel", "waste", "needed", "free", "other"].map(colour);
  const steps = Array.from({ length: 65 }, (_, nth) => mix(waste, needed, nth / 64));
  const dim = (rgb) => mix(rgb, empty, 0.85);
  const dimmed = { steps: steps.map(dim), free: dim(free), other: dim(other) };
  const isShown = (nth) =>
    (shown.kind === null || shown.kind === tiles.kind[nth]) && (shown.holder === null || shown.holder === tiles.holder[nth]);
  return {
    empty,
    of(nth) {
      const from = isShown(nth) ? { steps, free, other } : dimmed;
      const kind = tiles.kind[nth];
      return kind === FREE ? from.free : kind < CLASSES ? from.other : from.steps[Math.round(64 * fullness(nth))];
    },
  };
}

// What of each cell is coloured how: red, green, blue, and the part with memory, of slices together.
function cells({ group, count: number }, colours) {
  const sums = new Float32Array(4 * number);
  for (let nth = tileOf(shown.from); nth < map.count && tiles.starts[nth] < shown.to; nth++) {
    const part = presence(nth);
    if (!part) continue;
    const rgb = colours.of(nth);
    const [start, end] = [Math.max(tiles.starts[nth], shown.from) - shown.from, Math.min(tiles.starts[nth + 1], shown.to) - shown.from];
    for (let cell = Math.floor(start / group); cell * group < end; cell++) {
      const weight = ((Math.min(end, (cell + 1) * group) - Math.max(start, cell * group)) / group) * part;
      for (let nth = 0; nth < 3; nth++) sums[4 * cell + nth] += rgb[nth] * weight;
      sums[4 * cell + 3] += weight;
    }
  }
  return sums;
}

// Draws it all, pixel by pixel: this is as fast with a hundred cells as with a hundred thousand.
function draw() {
  if (!tiles) return;
  const width = $("room").clientWidth;
  const now = (shown.grid = grid(width));
  const [context, scale] = prepare(canvas, width, now.rows * now.cell + 1);
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = palette();
  const sums = cells(now, colours);
  const edge = now.cell >= 6 ? 1 : 0;
  const packed = (rgb) => (255 << 24) | (Math.round(rgb[2]) << 16) | (Math.round(rgb[1]) << 8) | Math.round(rgb[0]);
  const empty = packed(colours.empty);
  for (let cell = 0; cell < now.count; cell++) {
    const part = Math.min(1, sums[4 * cell + 3]);
    const own = part ? [0, 1, 2].map((nth) => sums[4 * cell + nth] / sums[4 * cell + 3]) : colours.empty;
    const box = boxOf(cell, now, scale, edge && isLast(cell, now) ? 1 : 0, edge);
    // Cells that are large enough are filled from below as far as there is memory; others have paler colours.
    const line = now.cell >= 6 ? box.top + Math.round((box.bottom - box.top) * (1 - part)) : box.top;
    paint(pixels, canvas.width, { ...box, bottom: line }, empty);
    paint(pixels, canvas.width, { ...box, top: line }, packed(now.cell >= 6 ? own : mix(colours.empty, own, part)));
  }
  context.putImageData(image, 0, 0);
  outline(context, now, scale);
  tellRange(now);
}

// Whether a tile ends with the last slice of a cell: the cells of a span are one piece.
function isLast(cell, { group }) {
  const end = shown.from + (cell + 1) * group;
  return tiles.starts[tileOf(end - 1) + 1] === end;
}

function boxOf(cell, { cell: size, columns }, scale, right, below) {
  const [x, y] = [(cell % columns) * size, Math.floor(cell / columns) * size];
  const pixel = (at) => Math.round(at * scale);
  return { left: pixel(x), right: pixel(x + size - right), top: pixel(y), bottom: pixel(y + size - below) };
}

function paint(pixels, width, { left, right, top, bottom }, value) {
  for (let y = top; y < bottom; y++) pixels.fill(value, y * width + left, y * width + Math.min(right, width));
}

function outline(context, now, scale) {
  const { cell } = shown;
  if (cell === null || cell >= now.count) return;
  const box = boxOf(cell, now, scale, 0, 0);
  context.lineWidth = 2 * scale;
  context.strokeStyle = css(colour("ink"));
  context.strokeRect(box.left - scale, box.top - scale, box.right - box.left + 2 * scale, box.bottom - box.top + 2 * scale);
}

function tellRange(now) {
  const slices = shown.to - shown.from;
  const each = now.group > 1 ? `A cell is ${plural(now.group, "slice")} of ${bytes(map.slice)}` : `A cell is a slice of ${bytes(map.slice)}`;
  const left = map.left_out ? ` ${plural(map.left_out, "tile")} behind are left out.` : "";
  const own = map.mappings.length ? ` Blocks with a mapping of their own stand last.` : "";
  $("map-about").textContent = `${bytes(slices * map.slice)} of addresses from ${addressOf(shown.from)} on. ${each}.${own}${left}`;
  $("in").disabled = now.group === 1 && now.cell === CELL_MAX;
  $("out").disabled = $("whole").disabled = !shown.before.length;
}

// The slices of a cell.
function slicesOf(cell) {
  const from = shown.from + cell * shown.grid.group;
  return [from, Math.min(from + shown.grid.group, shown.to)];
}

function cellUnder(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor(at / shown.grid.cell));
  const cell = y * shown.grid.columns + x;
  return x >= 0 && x < shown.grid.columns && cell >= 0 && cell < shown.grid.count ? cell : null;
}

function zoomTo(from, to) {
  shown.before.push([shown.from, shown.to]);
  Object.assign(shown, { from, to, cell: null });
  showTip(null);
  draw();
}

// A sixteenth of what is shown, around a cell.
function zoomIn(cell) {
  const slices = shown.to - shown.from;
  const wanted = Math.min(slices, Math.max(256, Math.ceil(slices / 16)));
  const middle = slicesOf(cell ?? Math.floor(shown.grid.count / 2))[0];
  const from = Math.max(shown.from, Math.min(shown.to - wanted, middle - Math.floor(wanted / 2)));
  if (wanted < slices) zoomTo(from, from + wanted);
}

function zoomOut(whole) {
  if (!shown.before.length) return;
  const [from, to] = whole ? shown.before[0] : shown.before.at(-1);
  shown.before = whole ? [] : shown.before.slice(0, -1);
  Object.assign(shown, { from, to, cell: null });
  draw();
}

// What a click does: several slices are looked at closer, one is told of.
function choose(cell) {
  if (cell === null) return;
  shown.cell = cell;
  const [from, to] = slicesOf(cell);
  tell($("detail"), linesOfRange(from, to));
  if (shown.grid.group > 1) zoomIn(cell);
  else draw();
}

function press(event) {
  const { columns, count: number } = shown.grid;
  const by = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by) {
    shown.cell = shown.cell === null ? 0 : Math.max(0, Math.min(number - 1, shown.cell + by));
    tell($("detail"), linesOfRange(...slicesOf(shown.cell)));
    draw();
  } else if (event.key === "Enter") choose(shown.cell);
  else if (event.key === "Escape") zoomOut(false);
  else return;
  event.preventDefault();
}

// Shows some tiles alone.
function only(kind, holder) {
  Object.assign(shown, { kind, holder });
  $("only-class").value = kind ?? "";
  $("only-holder").value = holder ?? "";
  draw();
}

function choices(place, all, named) {
  place.append(element("option", { value: "" }, all), ...named.map(([value, text]) => element("option", { value }, text)));
  const value = (of) => ($(of).value === "" ? null : Number($(of).value));
  place.onchange = () => only(value("only-class"), value("only-holder"));
}

async function startMap() {
  await unpack();
  await unpackSamples();
  $("samples-about").textContent = aboutSamples();
  shown.to = allSlices();
  const kinds = account.classes.map((row) => [CLASSES + map.classes.findIndex(([size]) => size === row.size), `blocks of ${count(row.size)} bytes`]);
  choices($("only-class"), "everything", kinds);
  choices($("only-holder"), "all heaps", map.holders.map((number, nth) => [nth + 1, holderName(number)]));
  canvas.onmousemove = (event) => {
    const cell = cellUnder(event);
    showTip(cell === null ? null : linesOfRange(...slicesOf(cell)), event);
  };
  canvas.onmouseleave = () => showTip(null);
  canvas.onclick = (event) => choose(cellUnder(event));
  canvas.onkeydown = press;
  $("in").onclick = () => zoomIn(shown.cell);
  $("out").onclick = () => zoomOut(false);
  $("whole").onclick = () => zoomOut(true);
  onLook($("room"), draw);
}
