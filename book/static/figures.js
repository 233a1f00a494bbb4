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
  const veil = () => page().replace("rgb(", "rgba(").replace(")", ", 0.75)");

  const pen = document.createElement("canvas").getContext("2d");

  // Lines of at most `room` px, with `joint` between two parts on the same line.
  function broken(parts, joint, room, font) {
    pen.font = font;
    const lines = [];
    for (const part of parts) {
      const longer = lines.length ? lines.at(-1) + joint + part : part;
      if (pen.measureText(longer).width <= room) lines.splice(-1, 1, longer);
      else if (joint !== " " && pen.measureText(part).width > room) lines.push(...broken(part.split(" "), " ", room, font));
      else lines.push(part);
    }
    return lines;
  }

  // A notebook's heading is broken for a telephone; where there is room for longer lines the panel moves up.
  function headed(layout, width) {
    const { title, under } = layout.meta ?? {};
    if (!title || !under) return layout;
    const { family } = layout.template.layout.font;
    const large = broken(title.split(" "), " ", width - 24, `700 14px ${family}`);
    const small = broken(under, " · ", width - 24, `11px ${family}`);
    const text = [
      ...large.map((line) => `<b>${line}</b>`),
      ...small.map((line) => `<span style="font-size:11px">${line}</span>`),
    ];
    const saved = 18 * (layout.title.text.split("<br>").length - text.length);
    const height = layout.height - saved;
    const below = (legend) => legend && { ...legend, y: (legend.y * layout.height) / height };
    const { legend, legend2 } = layout;
    return {
      ...layout,
      height,
      title: { ...layout.title, text: text.join("<br>") },
      margin: { ...layout.margin, t: layout.margin.t - saved },
      ...(legend && { legend: below(legend) }),
      ...(legend2 && { legend2: below(legend2) }),
    };
  }

  // Rows by panels are laid out once more for a telephone: names above their rows, fewer panels beside each other.
  const fitted = (layout, width) => (width < 560 ? { ...layout, ...layout.meta?.narrow } : layout);

  function themed(layout) {
    const { width, ...rest } = layout; // as wide as the page allows, on a phone too
    return {
      ...rest,
      autosize: true,
      // A name above its row lies on a veil of the page's colour, so that it can be read where a line crosses it.
      annotations: rest.annotations?.map((note) => (note.name === "row" ? { ...note, bgcolor: veil() } : note)),
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

  const figures = [...document.querySelectorAll(".lab-figure")].map((figure) => ({
    plot: figure.querySelector(".lab-plot"),
    spec: JSON.parse(figure.querySelector('script[type="application/json"]').textContent),
  }));
  const one = ({ plot, spec, layout }) =>
    Plotly.react(plot, spec.data.map(rimmed), themed(layout), { ...config, ...spec.config });
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
    for (const figure of figures) {
      figure.layout = headed(fitted(figure.spec.layout, figure.plot.clientWidth), figure.plot.clientWidth);
      figure.plot.style.minHeight = `${figure.layout.height}px`;
    }
    due = new Set(figures);
    resume();
  }

  draw();
  document.addEventListener("lab-machine", resume);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) draw();
    width = window.innerWidth;
  });
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
