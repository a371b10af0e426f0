"use strict";
// Draws the charts: those in view first, the others when there is time, all before printing.
(() => {
  const root = document.documentElement;
  const options = JSON.parse(document.getElementById("options").textContent);
  const places = [...document.querySelectorAll("[data-chart]")];
  const waiting = new Set(places);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  const theme = () => (dark.matches && !root.classList.contains("printing") ? "dark" : "light");

  function draw(place) {
    waiting.delete(place);
    echarts.getInstanceByDom(place)?.dispose();
    const chart = echarts.init(place, theme(), { renderer: "svg" });
    fill(chart, finished(options[place.dataset.chart], theme()));
    for (const name of hidden) chart.dispatchAction({ type: "legendUnSelect", name });
    root.dataset.drawn = places.length - waiting.size;
    root.dataset.charts = places.length;
  }

  const drawn = () => places.filter((place) => !waiting.has(place));
  const drawAll = () => waiting.forEach(draw);
  const redraw = () => drawn().forEach(draw);

  const seen = new IntersectionObserver(
    (entries) => entries.forEach(({ isIntersecting, target }) => isIntersecting && waiting.has(target) && draw(target)),
    { rootMargin: "400px" },
  );
  places.forEach((place) => seen.observe(place));
  setTimeout(function more() {
    [...waiting].slice(0, 4).forEach(draw);
    if (waiting.size) setTimeout(more, 30);
  }, 200);

  let settled;
  addEventListener("resize", () => {
    clearTimeout(settled);
    settled = setTimeout(() => drawn().forEach((place) => echarts.getInstanceByDom(place).resize()), 150);
  });
  dark.addEventListener("change", redraw);
  // What is drawn while it is folded away may have had no width.
  document.querySelectorAll("details").forEach((each) =>
    each.addEventListener("toggle", () => {
      const inside = each.open ? drawn().filter((place) => each.contains(place)) : [];
      inside.forEach((place) => echarts.getInstanceByDom(place).resize());
    }));

  // Paper shows what a screen has folded away, but for the cases one by one.
  const folded = [...document.querySelectorAll("details.folded")];
  let opened = [];
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    opened = folded.filter((each) => !each.open);
    opened.forEach((each) => (each.open = true));
    drawAll();
    redraw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    opened.forEach((each) => (each.open = false));
    redraw();
  });

  // The chips show and hide an allocator in all curves at once.
  const chips = [...document.querySelectorAll("[data-toggle]")];
  function show(name, on) {
    on ? hidden.delete(name) : hidden.add(name);
    const type = on ? "legendSelect" : "legendUnSelect";
    drawn().forEach((place) => echarts.getInstanceByDom(place).dispatchAction({ type, name }));
    chips.filter((chip) => chip.dataset.toggle === name).forEach((chip) => chip.setAttribute("aria-pressed", on));
  }
  chips.forEach((chip) =>
    chip.addEventListener("click", () => show(chip.dataset.toggle, hidden.has(chip.dataset.toggle))));
  document.querySelectorAll("[data-show]").forEach((button) =>
    button.addEventListener("click", () => {
      const only = button.dataset.show.split("\t").filter(Boolean);
      new Set(chips.map((chip) => chip.dataset.toggle)).forEach((name) => show(name, !only.length || only.includes(name)));
    }));

  // A link to a case opens it.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", open);
  open();
})();
