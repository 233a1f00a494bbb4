/* What tests/test_book.py asks of a page: wait until figures and math had their time, then say what is there. */
async () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const size = (element) => {
    const box = element?.getBoundingClientRect();
    return box ? [box.width, box.height] : [0, 0];
  };

  // Figures are drawn one by one, and a pause is as long as the drawing that it waits for.
  const shown = (plot) => getComputedStyle(plot).visibility !== "hidden";
  const undrawn = () => all(".lab-plot").some((plot) => shown(plot) && !plot.querySelector("svg.main-svg :is(.trace, .hm)"));
  const settle = async () => {
    for (let tries = 0; tries < 120 && undrawn(); tries++) await pause(50);
    return document.documentElement.scrollWidth - document.documentElement.clientWidth;
  };
  // Machine by machine, the first one last: what is not chosen is as wide as what is, but waits to be drawn.
  let wide = await settle();
  const machines = [...new Set(all(".lab-tabs input").map((input) => input.value))];
  for (const machine of [...machines.slice(1), ...machines.slice(0, 1)]) {
    all(".lab-tabs input").find((input) => input.value === machine).click();
    wide = Math.max(wide, await settle());
  }
  if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
  await document.fonts.ready;
  await pause(50);

  const outside = (inner, outer) =>
    inner.width > 0 &&
    (inner.left < outer.left - 2 ||
      inner.right > outer.right + 2 ||
      inner.top < outer.top - 2 ||
      inner.bottom > outer.bottom + 2);

  const inked = (shape) => shape.getBBox().width + shape.getBBox().height > 0;
  const hasPoints = ({ x, y }) =>
    [x, y].every((values) => values === undefined || !Array.isArray(values) || values.some((value) => value !== null));

  const beside = (element) => {
    const cell = element.closest(".cell");
    return {
      rows: cell ? all(".figure-data, details", cell).flatMap((data) => all("table tbody tr", data)).length : 0,
      records: cell ? all('a[href*="/records/"]', cell).map((link) => link.href) : [],
    };
  };

  const figures = all(".lab-plot").map((plot) => {
    const texts = all("svg text", plot);
    const { data } = JSON.parse(plot.nextElementSibling.textContent);
    const said = [plot.closest(".lab-figure"), plot].map((element) => element.getAttribute("aria-label") ?? "");
    return {
      ...beside(plot),
      traces: data.filter((trace) => (trace.visible ?? true) === true && hasPoints(trace)).length,
      drawn: all(".main-svg .trace, .main-svg .hm", plot).filter((trace) => all("path, rect, image, text", trace).some(inked)).length,
      size: size(plot.querySelector("svg.main-svg")),
      role: plot.getAttribute("role"),
      alt: said.join(" ").trim(),
      cut: texts
        .filter((text) => outside(text.getBoundingClientRect(), plot.getBoundingClientRect()))
        .map((text) => text.textContent),
      // Text inside a coloured bar or cell follows that, not the page.
      colour: getComputedStyle(texts.find((text) => !text.closest(".trace, .heatmaplayer")) ?? plot).fill,
    };
  });

  // Rows of marks: how wide the narrowest drawing is, and what reaches over its cell.
  const marked = all(".lab-rows").map((rows) => ({
    ...beside(rows),
    narrowest: Math.min(...all(".lab-marks svg.lab-mark", rows).map((mark) => size(mark)[0])),
    cut: all(".lab-marks :is(th, td)", rows)
      .filter((cell) => cell.scrollWidth > cell.clientWidth + 8)
      .map((cell) => cell.textContent),
  }));

  const channels = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = (rgb) =>
    rgb
      .slice(0, 3)
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
      .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const grounds = new Map();
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    if (!grounds.has(element)) {
      const rgba = channels(getComputedStyle(element).backgroundColor);
      grounds.set(element, rgba.length === 3 || rgba[3] > 0.5 ? rgba : ground(element.parentElement));
    }
    return grounds.get(element);
  };
  // Contrast as WCAG defines it: 4.5 is what plain text needs.
  const contrast = (element) => {
    const both = [luminance(channels(getComputedStyle(element).color)), luminance(ground(element))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const prose = all(".bd-article :is(p, li, td, th, caption, summary, h1, h2, h3, a:not(.headerlink))");
  // What is folded has no style until it is asked for, which for each fold alone takes long: all are open meanwhile.
  const folds = all("details:not([open])");
  folds.forEach((fold) => (fold.open = true));
  const faint = prose.filter((element) => element.textContent.trim() && contrast(element) < 4.5);
  folds.forEach((fold) => (fold.open = false));

  const math = all(".math").filter((element) => !element.closest(".MathJax"));
  return {
    figures,
    marked,
    plots: all(".js-plotly-plot").length,
    skipped: document.body.innerText.includes("application/vnd.plotly"),
    math: math.length,
    typeset: math.filter((element) => size(element.querySelector("mjx-container > mjx-math"))[0] > 0).length,
    mathErrors: all("mjx-merror, [data-mjx-error]").map((e) => e.dataset.mjxError || e.textContent),
    broken: all("img").filter((image) => !image.complete || !image.naturalWidth).map((image) => image.src),
    unlabelled: all("img").filter((image) => !image.hasAttribute("alt")).map((image) => image.src),
    links: all("a[href]").map((link) => link.href),
    heading: document.querySelector("h1")?.textContent.trim() ?? "",
    faint: faint.map((element) => element.textContent.trim().slice(0, 60)),
    wide: Math.max(wide, document.documentElement.scrollWidth - document.documentElement.clientWidth),
  };
};
