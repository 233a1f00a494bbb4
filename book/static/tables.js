/* Adds a search box, and a choice for each column of few values, above every table.filterable. */
"use strict";

document.querySelectorAll("table.filterable").forEach((table) => {
  const rows = [...table.tBodies[0].rows];
  const text = (cell) => cell.textContent.trim();
  const controls = document.createElement("div");
  controls.className = "lab-filter";

  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Filter rows";
  search.setAttribute("aria-label", "Filter rows by text");
  const count = document.createElement("output");

  const choices = [];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const values = [...new Set(rows.map((row) => text(row.cells[column])))].sort();
    if (values.length < 2 || values.length > 12 || values.length * 2 > rows.length) return;
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", `Filter by ${text(head)}`);
    choice.append(new Option(`${text(head)}: all`, ""), ...values.map((value) => new Option(value, value)));
    choice.dataset.column = column;
    choices.push(choice);
  });

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row) => {
      const content = row.textContent.toLowerCase();
      row.hidden =
        !words.every((word) => content.includes(word)) ||
        choices.some((choice) => choice.value && text(row.cells[choice.dataset.column]) !== choice.value);
      shown += !row.hidden;
    });
    count.value = `${shown} of ${rows.length} rows`;
  }

  controls.append(search, ...choices, count);
  controls.addEventListener("input", filter);
  (table.closest(".lab-scroll") ?? table).before(controls);
  filter();
});
