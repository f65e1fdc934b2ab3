// Making elements. Text from the data only ever becomes text nodes and attributes, never markup.

const byId = (id) => document.getElementById(id);

/** An element; `attributes` that are null or false are left out, children are elements or text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const tag = (text, kind = "") => make("span", { class: `tag ${kind}` }, text);

/** Text of unknown direction, which leaves that of its surroundings alone. */
const isolated = (text) => make("bdi", {}, text);

const whole = new Intl.NumberFormat("en-US");

/** A number as people write it; a dash where there is none. */
function shown(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return whole.format(value).replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e6 ? value.toPrecision(4) : value.toExponential(3);
  return text.replaceAll("-", "−");
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

const plural = (count, noun) => `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;

/** Says something to who cannot see the page change. */
function announce(text) {
  byId("status").textContent = text;
}

function explainFailure(error) {
  byId("failure").textContent = error.message;
  byId("failure").hidden = false;
}
