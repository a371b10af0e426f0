"use strict";
// What the options of the charts name by "@", and the two themes.

const INKS = {
  light: { paper: "#ffffff", ink: "#1f2328", soft: "#59636e", line: "#d1d9e0", faint: "#eaeef2" },
  dark: { paper: "#14171c", ink: "#e6eaef", soft: "#9aa4af", line: "#3b434d", faint: "#252b33" },
};
// With no quotation marks: ECharts writes it as it is into attributes of the pictures.
const FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif";
// Ratios of 1 to 4, by their logarithm; told apart with any colour vision.
const HEAT = ["#2b6cb0", "#9cc4e4", "#f1eadf", "#f5c78f", "#e59140", "#b9580f", "#7a2f07"];

const digits = (value, most) =>
  Number(value.toPrecision(most)).toLocaleString("en", { maximumSignificantDigits: most });
const scaled = (value, units) => {
  const [size, unit] = units.find(([size]) => Math.abs(value) >= size) ?? units.at(-1);
  return `${digits(value / size, 3)}${unit}`;
};
const number = (value) =>
  value == null ? "–" : Math.abs(value) < 1e4 ? digits(value, 3) : scaled(value, [[1e9, " G"], [1e6, " M"], [1e3, " k"]]);

// Puts each label of a scatter chart beside its point where no other label or point is yet.
function apart() {
  let labels = [];
  const points = [];
  const meet = (a, b) =>
    a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
  return ({ dataIndex, rect, labelRect }) => {
    if (dataIndex === 0) labels = [];
    points[dataIndex] = rect;
    // ECharts tells of the letters without the room above and below them.
    const [width, height] = [labelRect.width, labelRect.height * 1.8];
    const middle = rect.y + rect.height / 2;
    const steps = [0, 1, -1, 2, -2, 3, -3, 4, -4];
    const boxes = steps.flatMap((step) =>
      [rect.x + rect.width + 3, rect.x - width - 3, rect.x + (rect.width - width) / 2]
        .slice(0, Math.abs(step) > 1 ? 3 : 2)
        .map((x) => ({ x, y: middle + step * height * 0.6 - height / 2, width, height })));
    const free = (box) => ![...labels, ...points].some((other) => other && meet(box, other));
    const box = boxes.find(free) ?? boxes[0];
    labels.push(box);
    return { x: box.x, y: box.y + height / 2, align: "left", verticalAlign: "middle" };
  };
}

// Functions by the name that an option gives; `ink` has the theme's colours.
const NAMED = (ink, cells) => ({
  paper: ink.paper,
  ink: ink.ink,
  failed: "#8b929b",
  heat: HEAT,
  number,
  text: (item) => item.data.text,
  times: (value) => digits(value, 3),
  nanoseconds: (value) =>
    value == null ? "–" : scaled(value, [[1e9, " s"], [1e6, " ms"], [1e3, " µs"], [1, " ns"]]),
  // x is 1/(1 - quantile).
  percentile: (x) => `${Number((100 * (1 - 1 / x)).toFixed(x < 100 ? 0 : Math.ceil(Math.log10(x)) - 2))}%`,
  row: (label) => {
    const [name, best] = label.split("\t");
    return best ? `${name}  {best|${best}}` : name;
  },
  scale: (value) => `${value < 0.01 ? "1" : digits(2 ** value, 2)}×`,
  value3: (item) => item.value[3],
  cell: (item) => {
    const [x, y, , text] = item.value;
    return `${cells.rows[y].split("\t")[0]}<br><b>${cells.columns[x]}</b> ${text}`;
  },
  apart: apart(),
  point: (item) =>
    item.componentType === "series"
      ? `${item.marker}<b>${item.name}</b><br>time ${digits(item.value[0], 3)}×<br>memory ${digits(item.value[1], 3)}×`
      : "",
  whisker: (_, api) => {
    const [left, y] = api.coord([api.value(0), api.value(2)]);
    const [right] = api.coord([api.value(1), api.value(2)]);
    const path = `M${left} ${y}H${right}M${left} ${y - 3}v6M${right} ${y - 3}v6`;
    return { type: "path", shape: { pathData: path }, style: { stroke: ink.ink, fill: "none", lineWidth: 1 } };
  },
});

function revived(value, named) {
  if (typeof value === "string" && value[0] === "@") return named[value.slice(1)];
  if (Array.isArray(value)) return value.map((each) => revived(each, named));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, revived(each, named)]));
  }
  return value;
}

for (const [name, ink] of Object.entries(INKS)) {
  const axis = {
    nameLocation: "middle",
    nameTextStyle: { color: ink.soft, fontSize: 12 },
    axisLine: { show: true, lineStyle: { color: ink.line } },
    axisTick: { lineStyle: { color: ink.line } },
    minorTick: { lineStyle: { color: ink.line } },
    axisLabel: { color: ink.ink, rich: { best: { color: ink.soft, fontSize: 11 } } },
    splitLine: { lineStyle: { color: ink.faint } },
  };
  const tooltip = {
    confine: true, backgroundColor: ink.paper, borderColor: ink.line, padding: [6, 10],
    textStyle: { color: ink.ink, fontSize: 12 },
  };
  echarts.registerTheme(name, {
    backgroundColor: "transparent",
    textStyle: { fontFamily: FONT },
    title: { textStyle: { color: ink.ink, fontSize: 16 }, subtextStyle: { color: ink.soft } },
    legend: { textStyle: { color: ink.ink }, inactiveColor: ink.line },
    tooltip,
    categoryAxis: axis, valueAxis: axis, logAxis: axis,
    line: { label: { color: ink.ink } },
    bar: { label: { color: ink.ink } },
    scatter: { label: { color: ink.ink } },
    visualMap: { textStyle: { color: ink.soft } },
    markLine: { lineStyle: { color: ink.soft, type: "dashed" } },
  });
}

// An option as ECharts takes it.
function finished(option, theme) {
  const columns = option.xAxis.data?.map((name) => name.value);
  return { animation: false, ...revived(option, NAMED(INKS[theme], { columns, rows: option.yAxis.data })) };
}

// Gives a chart its option. The labels of a scatter chart are put in place only when all points
// are known, that is when they are laid out once more.
function fill(chart, option) {
  chart.setOption(option);
  if (option.series.some((series) => series.labelLayout)) chart.setOption({});
}

// Charts as SVG text by id, each with its title, its legend and a background of its own.
function pictures(charts) {
  const drawn = {};
  for (const { id, title, note, width, height, option } of charts) {
    const all = finished(option, "light");
    const lines = Math.ceil((note.length * 6.4) / (width - 40));
    const above = 42 + 16 * lines;
    const subtextStyle = { width: width - 40, overflow: "break", lineHeight: 16 };
    all.backgroundColor = INKS.light.paper;
    all.title = { text: title, subtext: note, left: 14, top: 12, itemGap: 5, subtextStyle };
    all.grid.top += above;
    all.grid.bottom += 8;
    if (all.legend) {
      const place = { show: true, orient: "vertical", right: 10, top: above + 6, itemGap: 4 };
      Object.assign(all.legend, place, { itemHeight: 11, itemWidth: 26, textStyle: { fontSize: 11 } });
      all.grid.right += 150;
    }
    const size = { width, height: height + above + 8 };
    const chart = echarts.init(null, "light", { renderer: "svg", ssr: true, ...size });
    fill(chart, all);
    drawn[id] = chart.renderToSVGString();
    chart.dispose();
  }
  return drawn;
}
