// A sample's texts with its evidence map: which segments of the context gave which tokens of the response.

const FIGURES = [
  ["short model", 1], ["without context", 2], ["near text", 3], ["best far segment", 4], ["everything", 5],
];
const GAIN = 6, SEGMENT = 7, NAMED = 8;

/** All text of a sample that is shown. */
const textOf = (sample) =>
  [sample.instruction, sample.response, sample.context.map(([text]) => text).join("")].join("\n");

/** The passages of a sample; choosing a token of its response shows where in the context it comes from. */
function passages(sample) {
  const segments = new Map((sample.segments ?? []).map(([number, gain, near, named]) => [number, { gain, near, named }]));
  const largest = Math.max(1e-9, ...[...segments.values()].filter(({ near }) => !near).map(({ gain }) => gain));
  const context = make("div", { class: "text context", tabindex: "0", role: "group", "aria-label": "Context" });
  context.append(...sample.context.map((piece) => contextPiece(piece, segments, largest)));
  if (!sample.characters) context.append("(empty)");
  const parts = [
    make("h3", {}, "Instruction"), make("div", { class: "text short" }, sample.instruction || "(empty)"),
    ...(sample.tokens ? mappedResponse(sample, segments, context) : plainResponse(sample)),
    ...dependence(sample),
    make("h3", {}, "Context"), context,
  ];
  if (sample.unseen) {
    parts.push(make("p", { class: "muted" }, `No model saw the first ${plural(sample.unseen, "character")}: struck out.`));
  }
  return parts;
}

const plainResponse = (sample) => [
  make("h3", {}, "Response"),
  make("div", { class: "text short" }, sample.response || "(empty)"),
  sample.why_not ? make("p", { class: "note" }, sample.why_not) : null,
];

/** What the response depends on, and those segments; nothing where that was not measured. */
function dependence({ depends, spans }) {
  if (depends === undefined) return [];
  const sentence = make("p", { class: "depends" }, "The response depends on ", make("strong", {}, depends), ".");
  if (!spans?.length) {
    const unknown = "The long model's tokenizer reports no places of its tokens in a text.";
    return [sentence, spans === null ? make("p", { class: "muted" }, unknown) : null];
  }
  const rows = spans.map(([first, last, gain, tokens, beginning]) =>
    make("tr", {},
      make("th", { scope: "row" }, `${whole.format(first)} to ${whole.format(last)}`),
      make("td", { class: "n" }, gain.toFixed(3)), make("td", { class: "n" }, whole.format(tokens)),
      make("td", {}, isolated(`${beginning} …`))));
  return [sentence, make("table", { class: "spans" },
    make("caption", {}, "Evidence in the context"),
    make("thead", {}, make("tr", {}, ...["characters", "gain", "tokens", "text"].map((name, place) =>
      make("th", { scope: "col", class: place === 1 || place === 2 ? "n" : "" }, name)))),
    make("tbody", {}, ...rows))];
}

/** The response and what is said of its token stay in sight while the context is read. */
function mappedResponse(sample, segments, context) {
  const detail = make("div", { id: "detail" }, make("p", { class: "muted" }, responseHint(sample)));
  const response = make("div", { class: "text short response", role: "group", "aria-label": "Response, token by token" });
  response.append(...sample.tokens.map((token) => tokenButton(token, sample, response, context, detail)));
  response.firstChild?.setAttribute("tabindex", "0");
  response.addEventListener("keydown", moveAmongTokens);
  return [
    make("div", { class: "held" }, make("h3", {}, "Response"), response, detail),
    givers(sample, segments, context),
  ];
}

function contextPiece([text, segment, seen, leftOut], segments, largest) {
  if (leftOut) return make("span", { class: "cut" }, ` … ${plural(leftOut, "character")} left out … `);
  if (!seen) return make("del", {}, text);
  const known = segments.get(segment);
  if (!known) return document.createTextNode(text);
  const kind = `segment${known.named ? " named" : ""}${known.near ? " near" : ""}`;
  const piece = make("span", { class: kind, "data-segment": segment, title: segmentTitle(segment, known) }, text);
  if (!known.near) piece.style.setProperty("--gain", Math.min(1, known.gain / largest).toFixed(3));
  return piece;
}

const segmentTitle = (number, { gain, near }) =>
  `Segment ${number + 1}, ${near ? "near" : "far"}: ${gain === null ? "left out by screening" : `gave ${shown(gain)}`}`;

const responseHint = (sample) =>
  sample.tokens.some((token) => token[NAMED])
    ? "Coloured: a far segment alone makes the token likelier than near text does. Choose a token to see which."
    : "The long model found no token of this response likely only with a far segment.";

/** A token: text that flows, and can be chosen by pointer, and by arrows once the response has the focus. */
function tokenButton(token, sample, response, context, detail) {
  const kind = `token${token[NAMED] ? " named" : ""}`;
  const button = make("span", { class: kind, role: "button", tabindex: "-1", "aria-pressed": "false" }, token[0]);
  button.style.setProperty("--gain", token[GAIN].toFixed(3));
  const choose = () => chooseToken(button, token, sample, response, context, detail);
  button.addEventListener("click", choose);
  button.addEventListener("focus", choose);
  return button;
}

function chooseToken(button, token, sample, response, context, detail) {
  for (const other of response.querySelectorAll("[tabindex='0']")) other.setAttribute("tabindex", "-1");
  for (const other of response.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", "true");
  button.setAttribute("tabindex", "0");
  detail.replaceChildren(tokenSentence(token, sample), tokenFigures(token));
  showSegment(context, token[SEGMENT]);
  announce(detail.firstChild.textContent);
}

/** Left and right go from token to token, Home and End to the first and the last. */
function moveAmongTokens(event) {
  const tokens = [...event.currentTarget.children], place = tokens.indexOf(document.activeElement);
  const last = tokens.length - 1;
  const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
  if (next === undefined || place < 0) return;
  event.preventDefault();
  event.stopPropagation();
  tokens[Math.min(Math.max(next, 0), last)].focus();
}

function tokenFigures(token) {
  const figures = FIGURES.filter(([, place]) => token[place] !== null).map(([name, place]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, token[place].toFixed(3), bar(token[place]))));
  return make("dl", { class: "figures", "aria-label": "Probability of the token" }, ...figures);
}

function bar(share) {
  const filled = make("span", { class: "bar" });
  filled.style.setProperty("width", `${100 * share}%`);
  return filled;
}

function tokenSentence(token, sample) {
  const text = make("q", {}, token[0].trim() || token[0]), segment = token[SEGMENT];
  if (segment < 0) return make("p", {}, text, ": no far segment makes it likelier than near text does.");
  const hidden = sample.segments.some(([number]) => number === segment) ? "" : ", which is left out here";
  const where = `segment ${segment + 1} of ${sample.segment_count}${hidden}`;
  return make("p", {}, text, `: likelier by ${token[GAIN].toFixed(3)} given ${where}, than given any near text.`);
}

function showSegment(context, segment) {
  for (const other of context.querySelectorAll(".chosen")) other.classList.remove("chosen");
  const piece = context.querySelector(`[data-segment="${segment}"]`);
  if (!piece) return;
  piece.classList.add("chosen");
  piece.scrollIntoView({ block: "center" });
}

/** The far segments that gave most, with the tokens that come from each. */
function givers(sample, segments, context) {
  const given = new Map();
  for (const token of sample.tokens) {
    if (token[SEGMENT] >= 0 && token[GAIN] >= 0.05) given.set(token[SEGMENT], [...(given.get(token[SEGMENT]) ?? []), token[0].trim()]);
  }
  const far = [...segments].filter(([number, { near, named }]) => !near && (named || given.has(number)));
  if (!far.length) return null;
  far.sort(([, a], [, b]) => b.named - a.named || b.gain - a.gain);
  const rows = far.slice(0, 6).map(([number, { gain, named }]) =>
    make("tr", {},
      make("th", { scope: "row" }, make("button", { type: "button", class: "plain", onclick: () => showSegment(context, number) },
        `segment ${number + 1}`), " ", named ? tag("named", "far") : ""),
      make("td", { class: "n" }, shown(gain)), make("td", {}, (given.get(number) ?? []).join(" · "))));
  return make("table", { class: "givers" },
    make("caption", {}, "Far segments that gave most"),
    make("thead", {}, make("tr", {}, ...["segment", "gave", "tokens"].map((name, place) =>
      make("th", { scope: "col", class: place === 1 ? "n" : "" }, name)))),
    make("tbody", {}, ...rows));
}
