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

  const figures = [...document.querySelectorAll(".lab-figure")].map((figure) => ({
    plot: figure.querySelector(".lab-plot"),
    spec: JSON.parse(figure.querySelector('script[type="application/json"]').textContent),
  }));
  const draw = () =>
    figures.forEach(({ plot, spec }) => Plotly.react(plot, spec.data, themed(spec.layout), { ...config, ...spec.config }));

  draw();
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
