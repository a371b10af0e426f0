// The page of an account: sums, steps, advice, tables. The map is in map.js.

const { target, held, resident, floor } = account;

function startPage() {
  const what = target.program && target.pid ? `${target.program}, process ${target.pid}` : "a core file";
  document.title = `cairn: ${what}`;
  $("title").textContent = `The memory of ${what}`;
  const build = target.build ? `build ${target.build}` : "of no known build";
  const threads = target.threads ? `; ${plural(target.threads[0], "thread")}, ${count(target.threads[1])} asleep` : "";
  $("about").textContent = `by ${target.library}, ${build}${target.hardened ? ", hardened" : ""}${threads}`;
  $("advice").replaceChildren(...account.advice.flatMap(advised));
  $("notes").textContent = account.notes.length ? `Note: ${account.notes.join("; ")}.` : "";
  stacked();
  startCurve();
  steps();
  classes();
  heaps();
  biggest();
  startMap().catch((error) => {
    failed(error);
    $("map-about").textContent = `The map cannot be drawn in this browser: ${error.message}.`;
  });
}

// An advice, and the code that is behind it.
function advised(advice) {
  const sites = (advice.sites ?? []).map((site) => element("li", {}, `${bytes(site.bytes)} by ${site.line}`));
  return [element("p", {}, advice.text), ...(sites.length ? [element("ul", { class: "rows" }, ...sites)] : [])];
}

// Of all that is resident, what is needed and what is not.
function stacked() {
  const parts = [
    ["pages with a block in use (the floor)", floor.bytes, "needed"],
    ["pages of spans with free blocks alone", floor.free_in_spans, "waste"],
    ["free slices, not yet given back (dirty)", floor.dirty, "free"],
    ["metadata", floor.metadata, "other"],
    ["not cairn's", resident.sum - resident.through_cairn, "line"],
  ].filter(([, number]) => number > 0);
  const part = ([name, number, role]) =>
    element("div", { style: `flex: ${number} 0 0; background: var(--${role})`, title: `${name}: ${bytes(number)}` });
  const row = ([name, number, role]) =>
    element("li", {}, element("i", { class: "swatch", style: `background: var(--${role})` }), `${name} ${bytes(number)}, ${percent(number, resident.sum)}`);
  $("resident").append(...parts.map(part));
  $("resident").setAttribute("aria-label", parts.map(([name, number]) => `${name} ${bytes(number)}`).join(", "));
  $("parts").append(...parts.map(row));
  const kernel = resident.kernel === null ? "" : `; the kernel says ${bytes(resident.kernel)}`;
  $("resident-title").textContent = `What is resident: ${bytes(resident.sum)}${kernel}`;
}

// Each step begins where the one before has ended.
function steps() {
  const rows = [];
  let [at, isOurs] = [0, true];
  const add = (name, number, role) => {
    rows.push({ name, number, from: Math.min(at, at + number), role });
    at += number;
  };
  const sum = (name) => rows.push({ name, number: at, from: 0, role: "sum" });
  account.steps.forEach((step, nth) => {
    if (nth === 0 && held.asked !== null && held.asked < step.bytes) {
      const rest = held.small - held.asked;
      add("asked for by the program", step.bytes - rest, "needed");
      add("room beyond that in its blocks", rest, "waste");
    } else add(step.name, step.bytes, step.bytes < 0 ? "hollow" : isOurs ? nth ? role(step.name) : "needed" : "line");
    if (step.name === "metadata") {
      isOurs = false;
      sum("resident through cairn");
    }
  });
  sum("resident in all");
  const most = Math.max(1, ...rows.map((row) => row.from + Math.abs(row.number)));
  for (const { name, number, from, role } of rows) {
    const place = `left: ${(100 * from) / most}%; width: ${(100 * Math.abs(number)) / most}%;`;
    const isSum = role === "sum";
    const fill = isSum ? "background: var(--ink)" : role === "hollow" ? "" : `background: var(--${role})`;
    const bar = element("div", { style: place + fill, class: role === "hollow" ? "hollow" : "" });
    $("steps").append(
      element("div", { class: isSum ? "sum" : "" }, name),
      element("div", { class: isSum ? "size sum" : "size" }, bytes(number)),
      element("div", { class: "track" }, bar),
    );
  }
}

function role(name) {
  return name.includes("dirty") ? "free" : name === "metadata" ? "other" : "waste";
}

const cell = (text) => element("td", {}, text);
const head = (id, names) => $(id).append(...names.map((name) => element("th", { scope: "col" }, name)));

function classes() {
  head("classes-head", ["size", "spans", "in use", "cached", "free", "bytes in use", "resident", "waste", "", ""]);
  const waste = (row) => Math.max(0, row.resident - row.in_use * row.size);
  const rows = [...account.classes].sort((one, other) => waste(other) - waste(one));
  const most = Math.max(1, ...rows.map((row) => row.resident));
  const made = (row) => {
    const kind = CLASSES + map.classes.findIndex(([size]) => size === row.size);
    const used = Math.min(row.resident, row.in_use * row.size);
    const bar = (from, number, of) =>
      element("div", { style: `left: ${(100 * from) / most}%; width: ${(100 * number) / most}%; background: var(--${of})` });
    const numbers = [row.spans, row.in_use, row.cached, row.free].map((number) => cell(count(number)));
    const sizes = [row.in_use * row.size, row.resident, waste(row)].map((number) => cell(bytes(number)));
    const track = element("div", { class: "track" }, bar(0, used, "needed"), ...(waste(row) ? [bar(used, waste(row), "waste")] : []));
    const show = element("button", { class: "link", onclick: () => toMap(kind, null) }, count(row.size));
    const part = cell(percent(waste(row), row.resident));
    return element("tr", {}, element("td", {}, show), ...numbers, ...sizes, part, element("td", {}, track));
  };
  fill($("classes"), rows, made, 15, $("all-classes"));
}

function toMap(kind, holder) {
  only(kind, holder);
  $("map-title").scrollIntoView({ block: "start" });
}

function heaps() {
  head("heaps-head", ["spans", "in use", "cached", "resident", ""]);
  const made = (row) => {
    const holder = map.holders.indexOf(row.heap) + 1;
    const name = holderName(row.heap);
    const show = holder ? element("button", { class: "link", onclick: () => toMap(null, holder) }, name) : name;
    const sizes = [row.in_use, row.cached, row.resident].map((number) => cell(bytes(number)));
    return element("tr", {}, cell(count(row.spans)), ...sizes, element("td", { class: "name" }, show));
  };
  fill($("heaps"), account.heaps, made, 15, $("all-heaps"));
}

function biggest() {
  head("biggest-head", ["bytes", "resident", "address", ""]);
  const made = (row) => {
    const at = `0x${BigInt(row.address).toString(16)}`;
    const kind = row.mapping ? "a mapping of its own" : "slices";
    return element("tr", {}, cell(bytes(row.bytes)), cell(bytes(row.resident)), cell(at), element("td", { class: "name" }, kind));
  };
  fill($("biggest"), account.biggest, made, 10, $("all-biggest"));
}

startPage();
