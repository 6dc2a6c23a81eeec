// The answer as it comes, how sure the model was of it, and where the time went.
import { events, newest } from "./api.js";

const said = document.getElementById("said");
const meter = document.getElementById("confidence"), stages = document.getElementById("stages");
const only = newest();
const UNSURE = 0.6; // probability below which a token is underlined
const NAMES = { open: "open", choose: "choose tokens", first_token: "first token", decode: "decode" };

export function forgetAnswer(hint) {
  only(async () => {}); // an answer that is under way is aborted
  meter.hidden = stages.hidden = true;
  said.className = "said idle";
  said.textContent = hint;
}

// A sentence in the place of the answer. share: 0 to 1, shown as a bar
export function note(text, share) {
  forgetAnswer(text);
  said.className = "said note";
  if (share !== undefined) showShare(share, "alike");
}

function showShare(share, what) {
  meter.hidden = false;
  meter.querySelector("i").style.width = `${100 * share}%`;
  meter.querySelector("b").textContent = `${(100 * share).toFixed(1)} % ${what}`;
}

export async function ask(request) {
  meter.hidden = stages.hidden = true;
  said.className = "said waiting";
  said.textContent = "";
  try {
    await only((signal) => events("/api/answer", request, signal, (kind, value) => {
      if (kind === "piece") said.append(value);
      else if (kind === "answer") finish(value);
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

function finish(answer) {
  said.className = "said";
  said.replaceChildren(...marked(answer));
  showShare(answer.confidence, "per token");
  meter.title = "The geometric mean of the probabilities of the answer's tokens";
  const parts = Object.entries(answer.seconds).filter(([, seconds]) => seconds >= 0.0005);
  const bars = document.createElement("div"), list = document.createElement("ul");
  bars.className = "bars";
  parts.forEach(([name, seconds], index) => {
    const bar = document.createElement("i"), entry = document.createElement("li");
    bar.className = entry.className = `s${index}`;
    bar.style.flex = String(seconds);
    entry.textContent = `${NAMES[name] ?? name} ${seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`}`;
    bars.append(bar);
    list.append(entry);
  });
  stages.replaceChildren(bars, list);
  stages.hidden = false;
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
