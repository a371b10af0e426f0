// Stacks as trees. A node is a function with those that called it in that order; its `width` is what it is drawn with:
// what there is, or with a second profile the larger of both, stack by stack.

const UNKNOWN = "[unknown]";

function node(name, source, parent) {
  return { name, source, parent, depth: parent ? parent.depth + 1 : 0, width: 0, now: 0, old: 0, kids: new Map() };
}

// Where in the source a frame is, without folders.
function place(frame) {
  const [, source, line] = data.frames[frame];
  const file = data.texts[source].split("/").pop();
  return file && line ? `${file}:${line}` : file;
}

// The amounts of each stack that has any: [stack, now, old].
function amounts(view, unit) {
  const rows = [];
  data.stacks.forEach((stack, nth) => {
    const now = data.now[view][nth][unit];
    const old = data.old ? data.old[view][nth][unit] : 0;
    if (now > 0 || old > 0) rows.push([stack, now, old]);
  });
  return rows;
}

// The tree of a view, callees first if it is inverted.
function tree(view, unit, inverted) {
  const root = node("all", "", null);
  for (const [stack, now, old] of amounts(view, unit)) {
    const width = Math.max(now, old);
    const frames = stack.length ? stack : [null];
    let at = root;
    for (let nth = -1; nth < frames.length; nth++) {
      if (nth >= 0) at = child(at, frames[inverted ? frames.length - 1 - nth : nth]);
      at.width += width;
      at.now += now;
      at.old += old;
    }
  }
  return root;
}

function child(parent, frame) {
  const name = frame === null ? UNKNOWN : data.texts[data.frames[frame][0]];
  let kid = parent.kids.get(name);
  if (!kid) {
    kid = node(name, frame === null ? "" : place(frame), parent);
    parent.kids.set(name, kid);
  } else if (frame !== null && kid.source !== place(frame)) {
    // Several lines of it have called: the file alone.
    kid.source = kid.source.split(":")[0];
  }
  return kid;
}

// Nodes to draw below a root that is as wide as the window: [node, left, width] in parts of it. What is narrower than
// `least` is left out, with all below.
function layout(root, least) {
  const boxes = [];
  const open = [[root, 0]];
  while (open.length) {
    const [at, left] = open.pop();
    const width = at.width / (root.width || 1);
    if (width < least) continue;
    boxes.push([at, left, width]);
    let next = left;
    for (const kid of ordered(at)) {
      open.push([kid, next]);
      next += kid.width / (root.width || 1);
    }
  }
  return boxes;
}

const ordered = (of) => [...of.kids.values()].sort((one, other) => other.width - one.width);

// What of a tree is in functions whose names have a part, each stack once.
function found(root, part) {
  const sum = { width: 0, now: 0, old: 0 };
  const open = [root];
  while (open.length) {
    const at = open.pop();
    if (at.parent && matches(at, part)) {
      for (const key of Object.keys(sum)) sum[key] += at[key];
    } else {
      for (const kid of at.kids.values()) open.push(kid);
    }
  }
  return sum;
}

function matches(at, part) {
  at.lower ??= at.name.toLowerCase();
  return at.lower.includes(part);
}

// The stacks of a view with their figures: [bytes, blocks].
function sites(view) {
  return data.stacks.map((stack, nth) => ({
    stack,
    now: data.now[view][nth],
    old: data.old ? data.old[view][nth] : [0, 0],
  })).filter((site) => site.now[0] > 0 || site.old[0] > 0);
}

// What languages bring along: who has called it says more.
const OF_LANGUAGES = /^<*(\w+[&*]* )?(std|__gnu_cxx|core|alloc|hashbrown)::|^operator new/;

// The names of a stack, the innermost first, at most so many; those of languages' libraries are left out if others are there.
function innermost(stack, most) {
  const names = stack.slice().reverse().map((frame) => [data.texts[data.frames[frame][0]], place(frame)]);
  const own = names.filter(([name]) => !OF_LANGUAGES.test(name));
  const some = (own.length ? own : names).slice(0, most);
  return some.length ? some : [[UNKNOWN, ""]];
}

// The node of a stack in a tree that begins with the outermost functions, or with the innermost if it is inverted.
function nodeOf(root, stack, inverted) {
  let at = root;
  for (const frame of inverted ? stack.slice().reverse() : stack) {
    const kid = at.kids.get(data.texts[data.frames[frame][0]]);
    if (!kid) break;
    at = kid;
  }
  return at;
}
