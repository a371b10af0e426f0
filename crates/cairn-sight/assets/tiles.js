// The tiles of the heap map: spans, and pieces of large blocks and of free slices, in the order of addresses; a number of each
// in a column for each thing that is known. Slices have numbers; those of mappings follow behind all others.

const { account, map } = data;
const [FREE, LARGE, NURSERY, MAPPING, CLASSES] = [0, 1, 2, 3, 4];
const pagesOfSlice = map.slice / map.page;
// Columns: slices, resident pages, kind, holder (of a span a place in `map.holders` and one; of a piece, whether it goes on from
// the one before), blocks in use, cached ones; and where each starts. `mapped`: the tiles that mappings begin with.
let tiles = null;

// The bytes of columns.
async function unpacked(base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let nth = 0; nth < text.length; nth++) packed[nth] = text.charCodeAt(nth);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function unpack() {
  const buffer = await unpacked(map.tiles);
  const n = map.count;
  const [long, short] = [(nth) => new Uint32Array(buffer, 4 * n * nth, n), (nth) => new Uint16Array(buffer, n * (8 + 2 * nth), n)];
  tiles = { slices: long(0), resident: long(1), kind: short(0), holder: short(1), used: short(2), cached: short(3) };
  tiles.starts = new Float64Array(n + 1);
  tiles.mapped = [];
  for (let nth = 0; nth < n; nth++) {
    tiles.starts[nth + 1] = tiles.starts[nth] + tiles.slices[nth];
    if (tiles.kind[nth] === MAPPING && !tiles.holder[nth]) tiles.mapped.push(nth);
  }
}

const allSlices = () => tiles.starts[map.count];

// The tile of a slice.
function tileOf(slice) {
  let [low, high] = [0, map.count - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tiles.starts[middle] <= slice) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The part of a tile that is resident, from 0 to 1.
const presence = (nth) => Math.min(1, tiles.resident[nth] / (tiles.slices[nth] * pagesOfSlice || 1));

// The part of a span's blocks that is in use.
const fullness = (nth) => Math.min(1, tiles.used[nth] / (map.classes[tiles.kind[nth] - CLASSES]?.[1] || 1));

function addressOf(slice) {
  const nth = whole(tileOf(slice))[0];
  const mapping = tiles.mapped.indexOf(nth);
  const [base, first] = mapping < 0 ? [map.base, 0] : [map.mappings[mapping], tiles.starts[nth]];
  return `0x${(BigInt(`0x${base}`) + BigInt(slice - first) * BigInt(map.slice)).toString(16)}`;
}

// The tiles of which one is a piece: the first, and the one behind the last.
function whole(nth) {
  let [first, end] = [nth, nth + 1];
  const goesOn = (at) => at < map.count && tiles.kind[at] < CLASSES && tiles.holder[at] === 1;
  while (goesOn(first)) first--;
  while (goesOn(end)) end++;
  return [first, end];
}

function holderName(number) {
  if (number === null) return "nobody's: their threads have ended";
  const row = account.heaps.find((heap) => heap.heap === number);
  const thread = row?.thread ? `, thread ${row.thread} ${row.thread_name ?? ""}`.trimEnd() : "";
  return `${row?.closed ? "closed heap" : "heap"} ${number}${thread}`;
}

const size = (slices) => `${bytes(slices * map.slice)} in ${plural(slices, "slice")}`;

// What is told of a tile, and of the block that it is a piece of.
function linesOf(nth) {
  const kind = tiles.kind[nth];
  const [first, end] = kind === FREE ? [nth, nth + 1] : whole(nth);
  const slices = tiles.starts[end] - tiles.starts[first];
  let there = 0;
  for (let piece = first; piece < end; piece++) there += tiles.resident[piece] * map.page;
  const without = slices * map.slice - there;
  const memory = `${bytes(there)} resident${without > 0 ? `, ${bytes(without)} without memory` : ""}`;
  const at = `at ${addressOf(tiles.starts[first])}`;
  if (kind === FREE) return [there ? "Free, not yet given back" : "Free, without memory", `${size(slices)} ${at}`, memory];
  const known = linesOfSamples(tiles.starts[first], tiles.starts[end]);
  if (kind < CLASSES) {
    const name = { [LARGE]: "Large block", [NURSERY]: "Nursery", [MAPPING]: "Block with a mapping of its own" }[kind];
    return [name, `${size(slices)} ${at}`, memory, ...known];
  }
  const [block, blocks] = map.classes[kind - CLASSES];
  const used = tiles.used[nth];
  const cached = tiles.cached[nth] ? `, ${count(tiles.cached[nth])} cached` : "";
  return [
    `Span of blocks of ${count(block)} bytes`,
    `${count(used)} of ${count(blocks)} blocks in use: ${percent(used, blocks)} full${cached}`,
    memory,
    `of ${holderName(map.holders[tiles.holder[nth] - 1] ?? null)}`,
    `${size(slices)} ${at}`,
    ...known,
  ];
}

// What is told of several slices together.
function linesOfRange(from, to) {
  const first = tileOf(from);
  const end = whole(first)[1];
  if (tiles.kind[first] !== FREE ? tiles.starts[end] >= to : tiles.starts[first + 1] >= to) return linesOf(first);
  const sums = { spans: 0, used: 0, room: 0, large: 0, free: 0, there: 0 };
  for (let nth = first; nth < map.count && tiles.starts[nth] < to; nth++) {
    const part = Math.min(to, tiles.starts[nth + 1]) - Math.max(from, tiles.starts[nth]);
    const kind = tiles.kind[nth];
    sums.there += part * map.slice * presence(nth);
    if (kind >= CLASSES) {
      sums.spans += 1;
      sums.used += part * fullness(nth);
      sums.room += part;
    } else if (kind !== FREE) sums.large += part;
    else sums.free += part;
  }
  const told = [`${size(to - from)}, from ${addressOf(from)} on`];
  if (sums.spans) told.push(`${plural(sums.spans, "span")}, ${percent(sums.used, sums.room)} full`);
  if (sums.large) told.push(`large blocks: ${bytes(sums.large * map.slice)}`);
  if (sums.free) told.push(`free slices: ${bytes(sums.free * map.slice)}`);
  told.push(`${bytes(sums.there)} resident`);
  if (sums.spans || sums.large) told.push(...linesOfSamples(from, to));
  return told;
}
