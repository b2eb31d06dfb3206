"use strict";
// Draws each chart as soon as it is visible: immediately in an open section, in a closed one when it
// is opened.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts");
  const config = read("config");
  const tip = document.getElementById("tip");

  const hideTip = () => { tip.hidden = true; };

  function showTip(_handler, event, _item, value) {
    if (value === null || value === undefined || value === "") { hideTip(); return; }
    tip.replaceChildren();
    const lines = typeof value === "object" ? Object.entries(value) : [["", value]];
    for (const [name, text] of lines) {
      const line = document.createElement("div");
      const strong = document.createElement("b");
      strong.textContent = text;
      line.append(name, strong);
      tip.append(line);
    }
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  const options = {
    renderer: "svg", actions: false, defaultStyle: false, config, tooltip: showTip,
  };

  // Awaits only promises, no timers, so a chart whose drawing began before printing is on paper
  async function draw(chart) {
    if (chart.dataset.drawn !== undefined) return;
    chart.dataset.drawn = "";
    try {
      for (const place of chart.querySelectorAll("[data-pane]")) {
        const pane = charts[chart.dataset.chart][Number(place.dataset.pane)];
        const autosize = { type: "fit-x", contains: "padding" };
        await vegaEmbed(place, { ...pane, autosize }, { mode: "vega-lite", ...options });
        place.querySelector("svg").setAttribute("aria-hidden", "true"); // the chart has a label
      }
      chart.dataset.drawn = "whole";
    } catch (error) {
      chart.classList.add("failed");
      chart.textContent = chart.closest("main").dataset.failed;
      console.error(chart.dataset.chart, error);
    }
  }

  const isVisible = (chart) => !chart.closest("details:not([open])");
  const drawVisible = () => [...document.querySelectorAll(".chart")].filter(isVisible).forEach(draw);

  for (const details of document.querySelectorAll("details"))
    details.addEventListener("toggle", drawVisible);
  // On paper, cells that the reader has opened show all their charts
  addEventListener("click", (event) => {
    const summary = event.target.closest("details.cell > summary");
    if (summary) summary.parentElement.classList.add("opened");
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });

  // Adds a filter above each long table, which shows only rows that contain every word typed
  for (const region of document.querySelectorAll("[data-filter]")) {
    const label = document.createElement("label");
    const field = document.createElement("input");
    field.type = "search";
    label.className = "filter";
    label.append(region.dataset.filter, " ", field);
    region.before(label);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of region.querySelectorAll("tbody tr")) {
        const text = [...row.cells].map((cell) => cell.textContent.toLowerCase()).join("\n");
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }

  // Open sections are printed, but the charts of one that was just opened may not be drawn yet
  addEventListener("beforeprint", drawVisible);

  drawVisible();
  document.documentElement.dataset.ready = "";
})();
