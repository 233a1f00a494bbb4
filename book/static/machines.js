/* One machine at a time: what is chosen on one bar of tabs holds for all of the page, and for the next pages. */
"use strict";

(() => {
  const KEY = "hypatia-lab-machine";
  const inputs = [...document.querySelectorAll(".lab-tabs input")];
  const parts = [...document.querySelectorAll(".cell_output")].flatMap(belonging);

  /* One bar is enough: it goes beneath the page's title and stays in sight, where the others are not shown. */
  const [first, ...others] = document.querySelectorAll(".lab-tabs");
  for (const bar of others) bar.hidden = true;
  const title = document.querySelector(".bd-article h1");
  if (first && title) title.after(first);

  /* Of what a cell shows, each part that belongs to a machine: the bar, the machine, and the element. */
  function belonging(cell) {
    let bar = null;
    let machine = null;
    const found = [];
    for (const element of cell.children) {
      bar = element.querySelector(".lab-tabs") ?? bar;
      const begun = element.querySelector(".lab-panel");
      if (begun) machine = begun.dataset.machine;
      if (element.querySelector(".lab-tabs, .lab-panels-end")) machine = null;
      if (bar && machine) found.push([bar, machine, element]);
    }
    return found;
  }

  /* A bar hides what is not chosen by rules of its own, for readers without scripts. With these each change anywhere on
     the page has all of it styled anew, and drawing a figure makes hundreds: a class does the same. */
  for (const { sheet } of document.querySelectorAll(".lab-tabs style")) {
    for (const group of [...(sheet?.cssRules ?? [])].filter((rule) => rule instanceof CSSSupportsRule)) {
      for (let place = group.cssRules.length - 1; place >= 0; place--) {
        if (group.cssRules[place].selectorText?.includes(":has(")) group.deleteRule(place);
      }
    }
  }

  function choose(machine) {
    for (const input of inputs) input.checked ||= input.value === machine;
    for (const [bar, own, element] of parts) {
      element.classList.toggle("lab-unchosen", bar.querySelector(":checked")?.value !== own);
    }
    document.dispatchEvent(new Event("lab-machine")); // figures of this machine are drawn now
  }

  document.addEventListener("change", ({ target }) => {
    if (!inputs.includes(target)) return;
    const { top } = target.getBoundingClientRect();
    choose(target.value);
    // Pages differ in height above the bar: it stays where it was clicked.
    window.scrollBy({ top: target.getBoundingClientRect().top - top, behavior: "instant" });
    try {
      localStorage.setItem(KEY, target.value);
    } catch {} // forbidden by the browser: the choice holds for this page
  });

  let last = null;
  try {
    last = localStorage.getItem(KEY);
  } catch {}
  choose(last);
})();
