// A table that is wider than the page gets the attribute data-cards, with which extra.css sets its rows as cards.
for (const table of document.querySelectorAll("article table:not([class])")) {
  const headings = [...table.querySelectorAll("thead th")].map(heading => heading.innerText);
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, place) => {
      cell.dataset.heading = headings[place] ?? "";
      // One box beside the heading, however many words and links the cell has.
      const box = document.createElement("span");
      box.append(...cell.childNodes);
      cell.append(box);
    });
  const fit = () => {
    delete table.dataset.cards;
    const width = Math.max(table.scrollWidth, table.offsetWidth);
    if (width > table.closest("article").clientWidth + 1) table.dataset.cards = "";
  };
  fit();
  addEventListener("resize", fit);
}
