// Samples of the heap profile: a number of each in a column for each thing that is known, by slice.

// Columns: slice, place in `map.samples.stacks`, age in seconds, bytes that it stands for.
let samples = null;

async function unpackSamples() {
  if (!map.samples) return;
  const buffer = await unpacked(map.samples.rows);
  const n = map.samples.count;
  samples = {
    slice: new Uint32Array(buffer, 0, n),
    stack: new Uint32Array(buffer, 4 * n, n),
    age: new Float32Array(buffer, 8 * n, n),
    bytes: new Float32Array(buffer, 12 * n, n),
  };
}

function duration(seconds) {
  const units = [["s", 60], ["min", 60], ["h", 24], ["days", Infinity]];
  let [value, nth] = [seconds, 0];
  while (value >= units[nth][1]) value /= units[nth++][1];
  return `${value.toFixed(1)} ${units[nth][0]}`;
}

// What is said of ages and stacks of the whole map.
function aboutSamples() {
  if (!samples) return "With a heap profile a cell tells how old its blocks are, and which code has allocated them: cairn run --profile FILE, or first cairn profile PID.";
  const from = map.samples.dated ? "" : " Ages are those from the youngest sample on: a core file has no clock.";
  return `A cell tells how old its blocks are, and which code has allocated them, as far as they are samples of the heap profile.${from}`;
}

// The first sample in a slice or behind it.
function firstSample(slice) {
  let [low, high] = [0, samples.slice.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples.slice[middle] < slice) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What samples say of some slices: the ages, and the stack that has most bytes.
function linesOfSamples(from, to) {
  if (!samples) return [];
  const [first, end] = [firstSample(from), firstSample(to)];
  if (first === end) return ["no sample in it: age not known"];
  const [ages, sums] = [[Infinity, 0], new Map()];
  let all = 0;
  for (let nth = first; nth < end; nth++) {
    ages[0] = Math.min(ages[0], samples.age[nth]);
    ages[1] = Math.max(ages[1], samples.age[nth]);
    sums.set(samples.stack[nth], (sums.get(samples.stack[nth]) ?? 0) + samples.bytes[nth]);
    all += samples.bytes[nth];
  }
  const [youngest, oldest] = ages.map(duration);
  const [stack, most] = [...sums].reduce((one, other) => (other[1] > one[1] ? other : one));
  const share = sums.size > 1 ? `most (${percent(most, all)}) by` : "by";
  return [
    end - first === 1 ? `a sample is ${oldest} old` : `samples: the oldest is ${oldest} old, the youngest ${youngest}`,
    `${share} ${map.samples.stacks[stack] ?? "?"}`,
  ];
}
