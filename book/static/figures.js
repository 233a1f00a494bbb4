/* Draws every figure that hypatia_lab.book put on the page, in the colours of the page's theme. */
"use strict";

(() => {
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const ink = () => getComputedStyle(document.body).color;
  const page = () => getComputedStyle(document.body).backgroundColor;

  function themed(layout) {
    const { width, ...rest } = layout; // as wide as the page allows, on a phone too
    return {
      ...rest,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...rest.font, color: ink() },
      hoverlabel: { ...rest.hoverlabel, bgcolor: page(), bordercolor: ink(), font: { color: ink() } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#808080", activecolor: ink() },
    };
  }

  // The dark rim that carries pale colours on white would only make a marker smaller on black; a cross within needs it.
  function rimmed(trace) {
    const { marker } = trace;
    const dark = document.documentElement.dataset.theme === "dark";
    if (!dark || !marker?.line || typeof marker.symbol !== "string" || /-(x|cross)$/.test(marker.symbol)) return trace;
    return { ...trace, marker: { ...marker, line: { ...marker.line, color: marker.color } } };
  }

  const figures = [...document.querySelectorAll(".lab-plot")].map((plot) => ({
    plot,
    spec: JSON.parse(plot.nextElementSibling.textContent),
  }));
  const one = ({ plot, spec }) =>
    Plotly.react(plot, spec.data.map(rimmed), themed(spec.layout), { ...config, ...spec.config });
  const inView = ({ plot }) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  };
  const shown = ({ plot }) => getComputedStyle(plot).visibility !== "hidden";
  let due = new Set();
  let busy = false;

  // What is in view first; the rest one by one, so that the page can be read and scrolled meanwhile.
  function next() {
    const open = [...due].filter(shown);
    const figure = open.find(inView) ?? open[0];
    busy = Boolean(figure);
    if (!busy) return;
    due.delete(figure);
    one(figure);
    setTimeout(next);
  }

  // Those of a machine that is not chosen wait for their tab.
  function resume() {
    due.forEach((figure) => shown(figure) && inView(figure) && due.delete(figure) && one(figure));
    if (!busy) next();
  }

  function draw() {
    due = new Set(figures);
    resume();
  }

  draw();
  document.addEventListener("lab-machine", resume);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
