// What the process held while it was looked at: a curve of each figure.

const CURVE_HEIGHT = 220;
const CURVE_EDGE = { left: 74, right: 12, top: 8, bottom: 24 };
const CURVES = [["resident", "resident through cairn", "ink"], ["live", "blocks that the program holds", "needed"], ["cached", "cached by threads", "waste"]];
const moments = account.curve ?? [];

const seconds = (number) => `${Number(number.toFixed(1))} s`;

// A step of a scale that has some marks: in seconds a round number, in bytes a power of two.
const timeStep = (all) => [1, 2, 5, 10].map((of) => of * 10 ** Math.floor(Math.log10(all / 8))).find((step) => all / step <= 8);
const byteStep = (all) => 2 ** Math.ceil(Math.log2(all / 5));

function curveScale() {
  const width = $("curve-room").clientWidth;
  const time = Math.max(0.001, moments.at(-1).seconds);
  const most = Math.max(1, ...moments.flatMap((moment) => CURVES.map(([name]) => moment[name])));
  const { left, right, top, bottom } = CURVE_EDGE;
  const x = (at) => left + (at / time) * Math.max(1, width - left - right);
  const y = (number) => CURVE_HEIGHT - bottom - (number / most) * (CURVE_HEIGHT - top - bottom);
  return { width, time, most, x, y };
}

function startCurve() {
  $("curve-section").hidden = moments.length < 2;
  if (moments.length < 2) return;
  const row = ([name, text, role]) => {
    const all = moments.map((moment) => moment[name]);
    const range = `${bytes(all[0])} → ${bytes(all.at(-1))}, from ${bytes(Math.min(...all))} to ${bytes(Math.max(...all))}`;
    return element("li", {}, element("i", { class: "swatch", style: `background: var(--${role})` }), `${text}: ${range}`);
  };
  $("curve-title").textContent = `In ${seconds(moments.at(-1).seconds)}, ${count(moments.length)} looks`;
  $("curves").append(...CURVES.map(row));
  $("curve").setAttribute("aria-label", $("curves").textContent);
  $("curve").onmousemove = pointCurve;
  $("curve").onmouseleave = () => showTip(null);
  onLook($("curve-room"), drawCurve);
}

function drawCurve() {
  const { width, time, most, x, y } = curveScale();
  const [context, scale] = prepare($("curve"), width, CURVE_HEIGHT);
  const [line, soft] = ["line", "soft"].map((name) => css(colour(name)));
  context.scale(scale, scale);
  context.font = "12px system-ui, sans-serif";
  context.strokeStyle = line;
  context.fillStyle = soft;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let number = 0; number <= most; number += byteStep(most)) {
    context.strokeRect(CURVE_EDGE.left, y(number), x(time) - CURVE_EDGE.left, 0);
    context.fillText(bytes(number), CURVE_EDGE.left - 8, y(number));
  }
  const step = timeStep(time) * (width < 500 ? 2 : 1);
  for (let at = 0; at <= time; at += step) {
    context.textAlign = at + step > time && at > 0 ? "right" : "center";
    context.fillText(seconds(at), x(at), CURVE_HEIGHT - 9);
  }
  context.lineWidth = 2;
  for (const [name, , role] of CURVES) {
    context.strokeStyle = css(colour(role));
    context.beginPath();
    for (const moment of moments) context.lineTo(x(moment.seconds), y(moment[name]));
    context.stroke();
  }
}

function pointCurve(event) {
  const { x } = curveScale();
  const at = event.clientX - $("curve").getBoundingClientRect().left;
  const away = (moment) => Math.abs(x(moment.seconds) - at);
  const nearest = moments.reduce((one, other) => (away(other) < away(one) ? other : one));
  showTip([`after ${seconds(nearest.seconds)}`, ...CURVES.map(([name, text]) => `${text}: ${bytes(nearest[name])}`)], event);
}
