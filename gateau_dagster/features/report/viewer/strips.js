// The maps of methods that read spans: by each method's own measure, what stretches of the context add to its score.

const LEVELS = 8;

/** Of one sample, a strip a map: as long as the context, and below it the stretches that add most. */
const strips = (sample) => sample.strips.map(([methods, adds, bars, most, elsewhere]) => {
  const name = `By ${methods}: what each stretch of the context adds to ${adds}`;
  const said = most.length ? `Shaded where the context adds to ${adds}` : `Nothing of the context adds to ${adds}`;
  return make("section", { class: "strip-map", "aria-label": `Map by ${methods}` },
    make("h3", {}, name),
    make("div", { class: "strip", role: "img", "aria-label": said }, ...bars.map(stripBar)),
    make("ol", {}, ...most.map(([added, text]) => make("li", {}, `${shown(added)}: `, make("q", {}, isolated(`${text}…`))))),
    elsewhere ? make("p", { class: "muted" }, `Instruction and response add ${shown(elsewhere)}.`) : null);
});

function stripBar([left, width, level, title]) {
  const filled = make("span", { title });
  filled.style.setProperty("left", `${left / 10}%`);
  filled.style.setProperty("width", `${width / 10}%`);
  filled.style.setProperty("--gain", level / LEVELS);
  return filled;
}
