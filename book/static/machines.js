/* One machine at a time: what is chosen on one bar of tabs holds for all of the page, and for the next pages. */
"use strict";

(() => {
  const KEY = "hypatia-lab-machine";
  const inputs = [...document.querySelectorAll(".lab-tabs input")];

  function choose(machine) {
    for (const input of inputs) input.checked ||= input.value === machine;
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

  try {
    choose(localStorage.getItem(KEY));
  } catch {}
})();
