"use strict";
const data = JSON.parse(document.getElementById("data").textContent), AXES = data.axes;
const LABELS = {framework: "Framework", mode: "Mode", gpus: "GPUs"}, ALL = "all";
const NAMES = {sync: "synchronous, shared GPUs", async: "asynchronous, one step behind"};
const state = {framework: AXES.framework[0], mode: AXES.mode[0], gpus: ALL, open: ""};
const key = c => [c.model, c.device, c.gpus, c.framework, c.mode].join("/");
const cells = new Map(data.cells.map(c => [key(c), c]));
function add(parent, name, text, attributes) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [attribute, value] of Object.entries(attributes || {})) node.setAttribute(attribute, value);
  return parent.appendChild(node);
}
const seconds = v => (v >= 100 ? v.toLocaleString("en", {maximumFractionDigits: 0}) : v.toPrecision(3)) + " s";
const ofCell = c => data.anchors.filter(a => a.model === c.model && a.device === c.device && a.mode === c.mode);
function read() {
  const [framework, mode, gpus, model, device, size] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (AXES.framework.includes(framework)) state.framework = framework;
  if (AXES.mode.includes(mode)) state.mode = mode;
  if (AXES.gpus.map(String).includes(gpus) || gpus === ALL) state.gpus = gpus;
  state.open = [model, device, size, state.framework, state.mode].join("/");
}
const link = c => "#" + [state.framework, state.mode, state.gpus, ...(c ? [c.model, c.device, c.gpus] : [])].join("/");
function detail(row, c) {
  const box = add(add(row, "td", undefined, {colspan: AXES.device.length + 1}), "div", undefined, {class: "detail"});
  const [mean, low, high] = c.step_s;
  add(box, "p", c.model + " on " + c.gpus + " " + c.device + ", " + NAMES[c.mode] + ", " + c.framework + ": a step takes " +
    seconds(mean) + " [" + seconds(low) + ", " + seconds(high) + "], " + Math.round(c.tokens_per_s_per_gpu) +
    " tokens/s/GPU, " + c.usd_per_step.toFixed(2) + " USD, " + Math.round(100 * c.memory_share) + " % of a GPU's memory.");
  add(box, "p", "Reproduce:");
  add(box, "code", data.reproduce + " " + c.words);
  const measured = ofCell(c);
  add(box, "p", measured.length ? "Measured of this model and device, whatever batch, lengths and GPUs (predicted):" :
    "Nobody published a step of this model on this device in this mode.");
  if (measured.length) {
    const list = add(box, "ul", undefined, {class: "list"});
    for (const a of measured) add(list, "li", a.id + ": " + seconds(a.measured_s) + " (" + seconds(a.predicted_s) + ")");
    add(add(box, "p"), "a", "All of them", {href: "accuracy.html#rl-steps"});
  }
  add(add(box, "p"), "a", "Permalink", {href: link(c)});
}
function cellOf(row, c) {
  const td = add(row, "td");
  if (!c) return;
  if (!c.step_s) { add(td, "small", "does not fit", {title: c.reason}); return; }
  const open = key(c) === state.open, button = add(td, "button", undefined, {"aria-expanded": open, type: "button"});
  add(button, "b", seconds(c.step_s[0]) + (ofCell(c).length ? " \u25cf" : ""));
  add(button, "small", Math.round(c.tokens_per_s_per_gpu) + " tok/s/GPU");
  add(button, "small", c.usd_per_step.toFixed(2) + " USD \u00b7 " + Math.round(100 * c.memory_share) + " % mem");
  button.addEventListener("click", () => { location.hash = open ? link() : link(c); });
}
function draw() {
  read();
  const filters = document.getElementById("filters"), table = document.getElementById("matrix");
  filters.replaceChildren();
  for (const axis of Object.keys(LABELS)) {
    const label = add(filters, "label", LABELS[axis]), select = add(label, "select", undefined, {id: axis});
    for (const value of axis === "gpus" ? [ALL, ...AXES.gpus] : AXES[axis])
      add(select, "option", NAMES[value] || value, {value}).selected = String(value) === String(state[axis]);
    select.addEventListener("change", () => { state[axis] = select.value; location.hash = link(); });
  }
  table.replaceChildren();
  add(table, "caption", "Seconds, tokens, price and fullest memory of a step; \u25cf: somebody measured this model on this device");
  const head = add(add(table, "thead"), "tr");
  for (const name of ["GPUs", ...AXES.device]) add(head, "th", name, {scope: "col"});
  const body = add(table, "tbody");
  for (const model of AXES.model) {
    add(add(body, "tr", undefined, {class: "group"}), "th", model, {scope: "rowgroup", colspan: AXES.device.length + 1});
    for (const gpus of AXES.gpus.filter(n => state.gpus === ALL || String(n) === state.gpus)) {
      const row = add(body, "tr");
      add(row, "th", gpus, {scope: "row"});
      for (const device of AXES.device)
        cellOf(row, cells.get([model, device, gpus, state.framework, state.mode].join("/")));
      const opened = cells.get(state.open);
      if (opened && opened.step_s && opened.model === model && opened.gpus === gpus) detail(add(body, "tr"), opened);
    }
  }
}
addEventListener("hashchange", draw);
draw();
