"use strict";
// Draws the charts one after the other, and anew when light becomes dark.
const options = JSON.parse(document.getElementById("options").textContent);
const places = [...document.querySelectorAll("[data-chart]")];
const dark = matchMedia("(prefers-color-scheme: dark)");

function draw(place) {
  echarts.getInstanceByDom(place)?.dispose();
  const chart = echarts.init(place, dark.matches ? "dark" : null, { renderer: "svg" });
  const backgroundColor = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  chart.setOption({ animation: false, backgroundColor, ...options[place.dataset.chart] });
  document.documentElement.dataset.drawn = places.indexOf(place) + 1;
}

const waiting = [...places];
(function next() {
  if (!waiting.length) return;
  draw(waiting.shift());
  setTimeout(next);
})();
dark.addEventListener("change", () => places.forEach(draw));
let settled;
addEventListener("resize", () => {
  clearTimeout(settled);
  settled = setTimeout(() => places.forEach((place) => echarts.getInstanceByDom(place)?.resize()), 150);
});

// The result as a file.
document.getElementById("save").addEventListener("click", () => {
  const text = document.getElementById("result").textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "lab.json";
  link.click();
});
