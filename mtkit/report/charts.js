"use strict";
// Charts: one step for all of them, moved by the slider or by pointing at a chart.
(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const at = (id) => document.getElementById(id);

  function nearest(points, step) {
    let best = points[0];
    for (const point of points) if (Math.abs(point[0] - step) < Math.abs(best[0] - step)) best = point;
    return best;
  }

  function figure(value) {
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size !== 0 && size < 0.01 ? value.toExponential(2) : value.toFixed(size < 10 ? 3 : 2);
  }

  function startCharts() {
    const slider = at("step");
    if (!slider) return;
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    const last = Math.max(...payload.charts.map((chart) => chart.last));
    slider.max = last;
    slider.value = last;

    function show(step, moved) {
      at("step-value").textContent = Math.round(step).toLocaleString("en");
      figures.forEach((node, index) => {
        const chart = payload.charts[index];
        const line = node.querySelector(".cursor");
        const x = chart.left + ((step - chart.first) / (chart.last - chart.first)) * (chart.right - chart.left);
        line.setAttribute("x1", x);
        line.setAttribute("x2", x);
        line.setAttribute("visibility", moved && step <= chart.last ? "visible" : "hidden");
        node.querySelectorAll("[data-value]").forEach((label, curve) => {
          label.textContent = figure(nearest(chart.curves[curve].points, step)[1]);
        });
      });
    }

    slider.addEventListener("input", () => show(Number(slider.value), true));
    figures.forEach((node, index) => {
      const chart = payload.charts[index];
      const picture = node.querySelector("svg");
      picture.addEventListener("pointermove", (event) => {
        const box = picture.getBoundingClientRect();
        const x = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
        const part = Math.min(1, Math.max(0, (x - chart.left) / (chart.right - chart.left)));
        const step = Math.round(chart.first + part * (chart.last - chart.first));
        slider.value = step;
        show(step, true);
      });
    });
    show(last, false);
  }

  startCharts();
})();
