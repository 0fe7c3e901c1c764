// The widget of explanation/one-episode: a signal against a limit that the reader moves.
"use strict";
for (const widget of document.querySelectorAll(".threshold")) {
  const values = widget.dataset.values.split(",").map(Number), dt = Number(widget.dataset.dt);
  const svg = widget.querySelector("svg"), verdict = widget.querySelector(".verdict");
  const [limitInput, severeInput] = widget.querySelectorAll("input");
  const peak = Math.max(...values), top = Math.max(peak, Number(limitInput.max)) * 1.08;
  const [width, height, left, above, below] = [720, 190, 96, 14, 150];
  const across = k => left + (width - left - 8) * k / (values.length - 1);
  const down = v => below - (below - above) * v / top;
  const add = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  };
  const draw = () => {
    const limit = Number(limitInput.value), severe = Number(severeInput.value);
    limitInput.nextElementSibling.textContent = limit;
    severeInput.nextElementSibling.textContent = severe;
    while (svg.childNodes.length > 1) svg.lastChild.remove();
    values.forEach((value, k) => {
      if (value > limit) add("rect", { class: "broken", x: across(k - 0.5), y: above, width: across(1) - across(0), height: below - above });
    });
    add("line", { class: "axis", x1: left, y1: below, x2: width - 8, y2: below });
    add("line", { class: "limit", x1: left, y1: down(limit), x2: width - 8, y2: down(limit) });
    add("polyline", { class: "line", points: values.map((value, k) => `${across(k)},${down(value)}`).join(" ") });
    add("circle", { class: "worst", cx: across(values.indexOf(peak)), cy: down(peak), r: 4 });
    add("text", { x: left - 6, y: down(limit) + 4, "text-anchor": "end" }, `${limit} N`);
    add("text", { x: left, y: height - 12 }, "0 s");
    add("text", { x: width - 8, y: height - 12, "text-anchor": "end" }, `${((values.length - 1) * dt).toFixed(2)} s`);
    const rho = limit - peak, depth = Math.min(1, Math.max(0, -rho / severe));
    const above_limit = values.filter(value => value > limit).length;
    verdict.textContent = `ρ = ${rho.toFixed(1)} N: ${rho < 0 ? "violated" : "holds"}. Depth ${depth.toFixed(3)}; ` +
      `it would be 1 from ${limit + severe} N on. ${above_limit} of ${values.length} records are above the limit.`;
  };
  limitInput.addEventListener("input", draw);
  severeInput.addEventListener("input", draw);
  draw();
}
