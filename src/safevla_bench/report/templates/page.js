// Filters, sorting and links of the register, and folded sections on a narrow screen. Without it everything is on the
// page, in the order of the sources.
(() => {
  "use strict";
  if (matchMedia("screen and (max-width: 46rem)").matches) {
    for (const one of document.querySelectorAll("details[data-fold]")) one.open = false;
  }
  const list = document.getElementById("register");
  if (!list) return;
  // Columns of numbers sort by the number that their text begins with; what has none has no value.
  const keyOf = (cell) => {
    const text = cell.lastChild.textContent;
    return cell.matches(".no, .number") ? Number.parseFloat(text) : text === "—" ? NaN : text;
  };
  const rows = Array.from(list.children, (row) => ({
    row, facets: JSON.parse(row.dataset.facets), keys: Array.from(row.querySelectorAll("summary > span"), keyOf),
  }));
  const selects = Array.from(document.querySelectorAll("#tools select"));
  const buttons = Array.from(document.querySelectorAll("#columns button"));
  const status = document.getElementById("status");
  const opener = document.getElementById("open-all");
  const reset = document.getElementById("reset");
  let column = 0, down = false;

  const fits = (one) => selects.every(({ value, dataset }) => value === "" || one.facets[dataset.facet].includes(value));
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const shown = () => rows.filter((one) => !one.row.hidden);

  function filter() {
    for (const one of rows) one.row.hidden = !fits(one);
    const count = shown().length;
    const order = column || down ? `, by ${buttons[column].textContent.toLowerCase()}${down ? ", greatest first" : ""}` : "";
    status.textContent = `${count} of ${rows.length} episodes shown${order}.`;
    reset.disabled = selects.every((one) => one.value === "");
    opener.disabled = count === 0;
    label();
  }

  function label() {
    const closed = shown().some((one) => !one.row.firstElementChild.open);
    opener.textContent = closed ? "Open all shown" : "Close all shown";
  }

  // Equal ones stay in the order of the sources; what has no value comes last either way.
  function sort() {
    const known = rows.filter((one) => !Number.isNaN(one.keys[column]));
    const unknown = rows.filter((one) => Number.isNaN(one.keys[column]));
    const sign = down ? -1 : 1;
    known.sort((a, b) => sign * compare(a.keys[column], b.keys[column]) || a.keys[0] - b.keys[0]);
    unknown.sort((a, b) => a.keys[0] - b.keys[0]);
    list.append(...[...known, ...unknown].map((one) => one.row));
    buttons.forEach((one, k) => {
      one.setAttribute("aria-pressed", String(k === column));
      one.dataset.order = k === column ? (down ? "down" : "up") : "";
    });
    filter();
  }

  function press(k) {
    down = k === column ? !down : buttons[k].dataset.first === "down";
    column = k;
    sort();
  }

  // A link to an episode opens it, whatever is filtered; one to a section or a case what is folded there.
  function follow() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.parentElement.parentElement !== list) {
      for (const one of target.querySelectorAll(":scope > details[data-fold]")) one.open = true;
      return;
    }
    if (target.parentElement.hidden) clear();
    target.open = true;
    target.scrollIntoView();
  }

  function clear() {
    for (const one of selects) one.value = "";
    filter();
  }

  for (const select of selects) {
    const counts = new Map();
    for (const { facets } of rows) {
      for (const name of facets[select.dataset.facet]) counts.set(name, (counts.get(name) || 0) + 1);
    }
    for (const name of [...counts.keys()].sort(compare)) select.append(new Option(`${name} (${counts.get(name)})`, name));
    select.parentElement.hidden = counts.size === 0;
  }
  buttons.forEach((one, k) => {
    one.disabled = false;
    one.addEventListener("click", () => press(k));
  });
  for (const one of selects) one.addEventListener("change", filter);
  reset.addEventListener("click", clear);
  opener.addEventListener("click", () => {
    const open = shown().some((one) => !one.row.firstElementChild.open);
    for (const { row } of shown()) row.firstElementChild.open = open;
    label();
  });
  list.addEventListener("toggle", label, true);
  window.addEventListener("hashchange", follow);
  document.getElementById("tools").hidden = rows.length < 2;
  sort();
  if (location.hash) follow();
})();
