// The answer as it comes, how sure the model was of it, the looks that it took, and where the time went.
import { events, newest } from "./api.js";

const at = (id) => document.getElementById(id);
const said = at("said"), meter = at("confidence"), stages = at("stages"), looks = at("looks");
const only = newest(), onlyFull = newest();
const UNSURE = 0.6; // probability below which a token is underlined
const NAMES = { open: "open", choose: "choose", first_token: "first token", decode: "decode", look: "look again", "decode again": "decode again" };
const LEAST = 0.0005; // seconds of a stage that is shown

export function forgetAnswer(hint) {
  only(async () => {}); // an answer that is under way is aborted
  onlyFull(async () => {});
  meter.hidden = stages.hidden = looks.hidden = true;
  said.className = "said idle";
  said.textContent = hint;
}

// A sentence in the place of the answer. share: 0 to 1, shown as a bar
export function note(text, share) {
  forgetAnswer(text);
  said.className = "said note";
  if (share !== undefined) showShare(share, "alike");
}

function showShare(share, what, title = "") {
  meter.hidden = false;
  meter.title = title;
  meter.querySelector("i").style.width = `${100 * share}%`;
  meter.querySelector("b").textContent = `${(100 * share).toFixed(1)} % ${what}`;
}

// full: the tokens of the whole picture at full resolution, to measure against; 0: none
// then: { answered(answer), looked(look or null) }
export async function ask(request, full, then) {
  meter.hidden = stages.hidden = looks.hidden = true;
  said.className = "said waiting";
  said.textContent = "";
  try {
    await only((signal) => events("/api/answer", request, signal, (kind, value) => {
      if (kind === "piece") said.append(value);
      else if (kind === "look") said.textContent = "";
      else if (kind === "answer") finish(value, request, full, then);
      else fail(value.message);
    }));
  } catch (error) {
    fail(error.message);
  }
}

function fail(message) {
  said.className = "said bad";
  said.textContent = message;
}

function finish(answer, request, full, then) {
  said.className = "said";
  said.replaceChildren(...marked(answer));
  if (answer.chance === null) showShare(answer.confidence, "per token", "The geometric mean of the probabilities of the answer's tokens");
  else showShare(answer.chance, "likely right", "Calibrated: the chance that the answer is right");
  showLooks(answer, then.looked);
  showStages(answer, request, full);
  then.answered(answer);
}

function element(kind, name, text = "") {
  const found = document.createElement(kind);
  found.className = name;
  found.textContent = text;
  return found;
}

// ---- looks: what the model had seen when it answered so
function showLooks(answer, looked) {
  looks.hidden = false;
  const pages = Object.keys(answer.pages).length;
  if (answer.chance === null) {
    const where = pages ? ` on ${pages} page${pages > 1 ? "s" : ""}` : "";
    looks.replaceChildren(element("span", "", `One look: ${answer.visual_tokens} tokens${where}`));
    return;
  }
  looks.replaceChildren(...answer.looks.map((one, index) => {
    const button = element("button", "look", `Look ${index + 1}: ${one.visual_tokens} tokens`);
    button.type = "button";
    button.title = `It answered “${one.text}”${one.chance === null ? "" : `, ${(100 * one.chance).toFixed(0)} % likely right`}`;
    button.setAttribute("aria-pressed", "false");
    button.disabled = !one.tokens;
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") === "true";
      for (const other of looks.children) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(!pressed));
      looked(pressed ? null : one);
    });
    return button;
  }));
}

// ---- time per stage, next to that of the same question at full resolution
const total = (seconds) => Object.values(seconds).reduce((sum, value) => sum + value, 0);
const duration = (seconds) => (seconds < 0.9995 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);

function showStages(answer, request, full) {
  const rows = element("div", "rows"), legend = element("ul", "");
  const names = Object.keys(answer.seconds).filter((name) => answer.seconds[name] >= LEAST);
  const read = answer.chance === null ? {} : { choose: "choose and read" }; // with looks the tokens are read as they are chosen
  const called = { ...NAMES, ...read };
  legend.append(...names.map((name) => element("li", `s${Object.keys(NAMES).indexOf(name)}`, `${called[name] ?? name} ${duration(answer.seconds[name])}`)));
  const own = row(`${answer.visual_tokens} tokens`, answer.seconds);
  rows.append(...own);
  stages.replaceChildren(rows, legend);
  stages.hidden = false;
  scale(rows);
  if (!full.tokens || full.tokens <= answer.visual_tokens) return;
  const button = element("button", "measure", `Measure at full resolution, ${full.tokens.toLocaleString("en")} tokens`);
  button.type = "button";
  button.title = full.tokens < full.all ? `All ${full.all.toLocaleString("en")} tokens are more than this server takes at once` : "The same question, every pixel: measured here, now";
  button.addEventListener("click", () => measure(button, rows, request, full));
  rows.append(button);
}

async function measure(button, rows, request, full) {
  button.disabled = true;
  button.textContent = "Measuring …";
  const asked = { ...request, budget: full.tokens, allocator: "resize", relevance: "none", looks: 1 };
  const place = (...parts) => { button.replaceWith(...parts); scale(rows); };
  const failed = (message) => place(element("p", "wide bad", message));
  try {
    await onlyFull((signal) => events("/api/answer", asked, signal, (kind, value) => {
      if (kind === "error") failed(value.message);
      if (kind !== "answer") return;
      const cut = full.tokens < full.all ? ` of ${full.all.toLocaleString("en")}` : "";
      const parts = row(`${value.visual_tokens.toLocaleString("en")}${cut} tokens`, value.seconds);
      for (const part of parts) part.title = `At full resolution it answered “${value.text}”`;
      place(...parts);
    }));
  } catch (error) {
    failed(error.message);
  }
}

// A label, a bar of stages, and their sum.
function row(label, seconds) {
  const bars = element("div", "bars");
  for (const [index, name] of Object.keys(NAMES).entries()) {
    if (!(seconds[name] >= LEAST)) continue;
    const bar = element("i", `s${index}`);
    bar.title = `${NAMES[name]} ${duration(seconds[name])}`;
    bar.dataset.seconds = String(seconds[name]);
    bars.append(bar);
  }
  return [element("span", "what", label), bars, element("b", "", duration(total(seconds)))];
}

// All bars on one scale.
function scale(rows) {
  const all = [...rows.querySelectorAll(".bars")];
  const sums = all.map((bars) => [...bars.children].reduce((sum, one) => sum + Number(one.dataset.seconds), 0));
  const most = Math.max(...sums, 1e-9);
  for (const bars of all) for (const one of bars.children) one.style.width = `${(100 * Number(one.dataset.seconds)) / most}%`;
}

// The text with its unsure tokens underlined, where tokens and text agree.
function marked(answer) {
  const parts = [];
  let rest = answer.text || "(an empty answer)";
  for (const [token, chance] of answer.tokens) {
    const text = parts.length ? token : token.trimStart();
    if (!text || !rest.startsWith(text)) break;
    rest = rest.slice(text.length);
    const part = document.createElement("span");
    part.textContent = text;
    part.title = `${(100 * chance).toFixed(1)} %`;
    if (chance < UNSURE) part.className = "unsure";
    parts.push(part);
  }
  return [...parts, rest];
}
