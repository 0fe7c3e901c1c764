// Sorts the index of runs. Without it the runs stand in the order of their names.
(() => {
  "use strict";
  const table = document.getElementById("runs");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row, place) => ({ row, place }));
  const status = document.getElementById("sorted");
  let column = -1, down = false;

  // Equal ones stay in order; what has no value comes last either way.
  function sort() {
    const isNumber = heads[column].dataset.sort === "number";
    const sign = down ? -1 : 1;
    const key = ({ row }) => row.cells[column].dataset.value;
    const known = rows.filter((row) => key(row) !== "" && key(row) !== "—");
    const unknown = rows.filter((row) => !known.includes(row));
    const order = (a, b) => (isNumber ? Number(key(a)) - Number(key(b)) : key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
    known.sort((a, b) => sign * order(a, b) || a.place - b.place);
    body.append(...[...known, ...unknown].map(({ row }) => row));
    heads.forEach((head, k) => {
      head.firstElementChild.dataset.order = k === column ? (down ? "down" : "up") : "";
      head.ariaSort = k === column ? (down ? "descending" : "ascending") : "none";
    });
    status.textContent = `Sorted by ${heads[column].textContent}, ${down ? "greatest" : "least"} first.`;
  }

  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, k) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      down = k === column ? !down : head.dataset.sort === "number";
      column = k;
      sort();
    });
  });
})();
