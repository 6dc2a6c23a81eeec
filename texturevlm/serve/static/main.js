// The page: settings in, plans out. Every change of a setting asks for a new plan and aborts the one before.
import { getJson, newest, postJson, upload } from "./api.js";
import { ask, forgetAnswer, note } from "./answer.js";
import { startBudget, step } from "./budget.js";
import { Timeline } from "./clip.js";
import { Rivals, rivals } from "./compare.js";
import { listenToDrops } from "./drops.js";
import { save } from "./export.js";
import { Gaze } from "./gaze.js";
import { listen } from "./keys.js";
import { updateAttention, updateChannel, updateHeat } from "./overlays.js";
import { ordered, tokenAt } from "./paint.js";
import { Panes } from "./panes.js";
import { clipped, describe, percent, planned, shareLevels, wordsOf } from "./plans.js";
import { listenToBoxes } from "./read.js";
import { link, remember, restore, state, write } from "./state.js";
import { busy, toast, untoast } from "./status.js";
import { fillChannels, fillStrip, markPage, markShares } from "./strip.js";
import { changeTheme } from "./themes.js";
import { showToken } from "./token.js";

const at = (id) => document.getElementById(id);
const QUESTION_PAUSE = 250, STEP_PAUSE = 40; // milliseconds
const GAZE_PAUSE = 60;
const onlyPlans = [newest(), newest(), newest(), newest()], onlyFile = newest(), onlyShares = newest();
let about = null, image = null, plans = [], clip = null;
const gaze = new Gaze();
const panes = new Panes(at("panes"), at("pane"), {
  moved: (view) => { state.view = view; remember(); },
  pointed,
});
const timeline = new Timeline(
  { place: at("timeline"), play: at("play"), speed: at("speed"), track: at("track"), said: at("time") },
  { choose: (page) => openPage(page), showFrame, ended: (page) => openPage(page) },
);

const gazing = () => at("show-gaze").checked;
// A whole video is one plan; comparing and gazing are about one moment of it.
const clipping = () => image?.kind === "video" && state.whole && state.mode !== "compare" && !gazing();
const whole = () => image?.pages > 1 && state.whole;

// ---- plans
function request({ allocator, relevance } = state) {
  const { id, page, question, budget } = state;
  const looked = gazing() ? { gaze: gaze.now, trail: gaze.trail } : {};
  return { id, page, question, budget, allocator: allocator || null, relevance: relevance || null, ...looked };
}

async function update() {
  if (!image) return;
  remember();
  const began = performance.now();
  if (clipping()) {
    const asked = { ...request(), page: 0 }, key = JSON.stringify(asked); // all moments have one plan
    const found = clip?.key === key ? clip : await busy(() => onlyPlans[0]((signal) => clipped(asked, signal)));
    if (!found) return;
    clip = { ...found, key };
    plans = [clip.plans[state.page]];
    timeline.draw(clip);
    markShares(at("strip"), clip.moments.map((one) => one.used), (count) => `${count} tokens`);
  } else {
    const wanted = state.mode === "compare" ? [state, ...rivals()] : [state];
    const found = await Promise.all(wanted.map((how, index) => busy(() => onlyPlans[index]((signal) => planned(request(how), signal)))));
    if (!found[0]) return; // a newer one is under way
    plans = found.map((one, index) => one ?? plans[index]);
  }
  arrange();
  document.body.dataset.milliseconds = String(Math.round(performance.now() - began));
  document.body.dataset.budget = String(plans[0].budget);
  attend();
}

let paused = 0;
function updateSoon(milliseconds, then = update) {
  clearTimeout(paused);
  paused = setTimeout(then, milliseconds);
}

function arrange() {
  const compare = state.mode === "compare", [plan] = plans;
  panes.show(compare ? 1 + rivals().length : 2);
  panes.shown.forEach((pane, index) => {
    pane.plan = (compare ? plans[index] : plan) ?? null;
    pane.footprints = state.footprints && state.mode !== "difference" && (compare || index === 0);
    pane.highlight = pane.look = null;
    pane.gaze = gazing() ? gaze : null;
    pane.note.title = "legible: the expected share of what matters that can be read";
  });
  const levels = shareLevels(plans.filter(Boolean));
  if (compare) {
    [state, ...rivals()].forEach(({ allocator }, index) => panes.all[index].show("seen", `${"ABCD"[index]}: ${allocator || about.allocator}`, describe(plans[index])));
  } else {
    panes.all[0].show("original", "Original", image ? `${image.size[1]} × ${image.size[0]} px` : "");
    const alone = whole() && image.kind === "document"; // the plan is of one page, the question is about all
    const seen = alone ? "Seen of this page" : plan?.whole === undefined ? "What the model sees" : "What it has seen so far";
    if (state.mode === "look") panes.all[1].show("seen", seen, describe(plan));
    else panes.all[1].show("difference", "What it does not see", "black: as in the original");
  }
  for (const [id, words] of Object.entries(plan ? wordsOf(plan, levels) : {})) at(id).textContent = words;
  showToken(null);
}

const heat = () => updateHeat(panes.all[0], image, { ...request(), gaze: null });
const channel = () => updateChannel(panes.all[0], at("channels"), image, request());

// Which pages of a document the question is about.
async function updateShares() {
  if (image?.kind !== "document" || image.pages < 2) return;
  const found = await busy(() => onlyShares((signal) => postJson("/api/shares", request(), signal)));
  if (found) markShares(at("strip"), found.shares, (share) => `${percent(share)} likely to hold the answer`);
}

async function attend() {
  const [own] = plans;
  if (!own || !at("show-attention").checked || gazing() || clipping()) return;
  if ((await updateAttention(own, { ...request(), looks: 1 })) && own === plans[0]) panes.draw();
}

// ---- files and pages
async function openFile(file) {
  if (!file) return;
  if (file.size > about.limits.bytes) {
    toast(`The file has ${(file.size / 2 ** 20).toFixed(0)} MiB; at most ${about.limits.bytes / 2 ** 20} MiB can be opened.`, true);
    return;
  }
  const found = await busy(() => onlyFile((signal) => upload(file, signal)));
  if (!found) return;
  untoast(); // an error of the file before
  Object.assign(state, { id: found.id, page: 0, channel: "", view: "" });
  await show({ ...found, page: 0 });
}

async function openPage(page, known = true) {
  const found = await busy(() => onlyFile((signal) => getJson(`/api/images/${state.id}?page=${page}`, signal)));
  if (!found) return false;
  const zoomed = known && found.kind === "video" ? state.view : ""; // a video is watched: it stays where it is
  Object.assign(state, { page }, known ? { view: zoomed } : {});
  await show(found);
  return true;
}

async function show(found) {
  const fresh = found.id !== image?.id;
  image = found;
  gaze.forget();
  if (fresh) clip = null;
  plans = clip && clipping() ? [clip.plans[state.page]] : [];
  if (fresh || !whole()) forgetAnswer(hint()); // an answer about the whole file stays
  at("empty").hidden = true;
  at("export").hidden = false;
  at("share").disabled = false;
  at("file-name").textContent = `${image.name || "image"} · ${image.size[1]} × ${image.size[0]}`;
  document.title = `${image.name || "image"} · texturevlm`;
  panes.each((pane) => { pane.plan = pane.channel = pane.relevance = pane.box = pane.frame = null; });
  if (fresh) {
    fillStrip(at("strip"), image, (page) => timeline.pick(page));
    timeline.open(image);
    sayWhole();
    updateShares();
  }
  markPage(at("strip"), image.page ?? 0);
  timeline.mark(image.page ?? 0);
  fillShelf();
  arrange();
  await panes.open(image, about.tile, state.view ? state.view.split(",").map(Number) : []);
  await Promise.all([update(), heat(), channel()]);
}

// While a video plays, its frames lie above the tiles.
function showFrame(page, frame) {
  if (!clip) return;
  state.page = page;
  image.page = page;
  plans = [clip.plans[page]];
  panes.each((pane) => { pane.frame = frame; });
  markPage(at("strip"), page);
  arrange();
}

function turnPage(by) {
  const page = (image?.page ?? 0) + by;
  if (image && page >= 0 && page < image.pages) timeline.pick(page);
}

const hint = () => (about.mode === "local" ? `Type a question: ${about.model} answers here.` : "No model answers: start the server with --model.");

// What a question is about, and how often the model may look.
function sayWhole() {
  const many = image?.pages > 1, video = image?.kind === "video";
  at("about-what").hidden = !many;
  at("whole").replaceChildren(new Option(video ? "whole video" : "all pages", "1", false, state.whole), new Option(video ? "this moment" : "this page", "0", false, !state.whole));
  at("looks-choice").disabled = whole();
  at("looks-choice").title = whole() ? "A whole file is asked about in one look" : "How often the model may look";
  at("show-attention").disabled = clipping();
}

// ---- pointer: details of a token; or the gaze
let looked = 0, late = 0;
function pointed(pane, point) {
  if (gazing() && image) {
    const now = performance.now();
    clearTimeout(late);
    if (point && now - looked < GAZE_PAUSE) {
      late = setTimeout(() => pointed(pane, point), GAZE_PAUSE); // where the eye comes to rest must not be missed
      return;
    }
    looked = now;
    if (point) gaze.look(point, image.size, now);
    else {
      gaze.leave();
      heat();
      channel();
      fillShelf();
    }
    update();
    return;
  }
  if (!pane.plan) return;
  const token = point ? tokenAt(pane.plan, point.x, point.y) : null;
  if (token === pane.highlight) return;
  for (const one of panes.shown) {
    one.highlight = one.plan === pane.plan ? token : null;
    one.draw();
  }
  showToken(pane.plan, token, image, about.tile);
}

// ---- controls
function fillShelf() {
  if (image && !at("channels").hidden) fillChannels(at("channels"), about.channels, image, state.channel, request(), chooseChannel);
}

function chooseChannel(name) {
  state.channel = state.channel === name ? "" : name;
  remember();
  channel();
}

function setMode(mode) {
  state.mode = mode;
  document.querySelector(`input[name=mode][value=${mode}]`).checked = true;
  at("against").hidden = mode !== "compare";
  plans = plans.slice(0, 1);
  sayWhole();
  arrange();
  update();
}

function submit(event) {
  event.preventDefault();
  if (!image) return toast("Open a file first.");
  if (!state.question.trim()) return at("question").focus();
  const looks = whole() ? 1 : Number(state.looks) || state.looks;
  const asked = { ...request(), gaze: null, trail: [], whole: whole(), looks };
  const all = whole() ? 0 : plans[0]?.full ?? 0;
  return ask(asked, { all, tokens: Math.min(all, about.limits.budget) }, { answered, looked: showLook });
}

// The pages that it saw.
function answered({ pages }) {
  if (!Object.keys(pages).length) return;
  const counts = Array.from({ length: image.pages }, (_, index) => pages[index + 1] ?? 0);
  markShares(at("strip"), counts, (count) => `${count} tokens`);
}

// The tokens of one of several looks, over the original.
function showLook(look) {
  const own = look && { ...look, patch: look.tokens.patch, levels: plans[0]?.levels };
  if (own) own.sorted = ordered(own);
  panes.all[0].look = own;
  panes.draw();
}

const follow = (id, name, then = update) => at(id).addEventListener("change", (event) => {
  state[name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
  remember();
  then();
});

function listenToControls() {
  at("file").addEventListener("change", (event) => { openFile(event.target.files[0]); event.target.value = ""; });
  at("question").addEventListener("input", (event) => {
    state.question = event.target.value;
    updateSoon(QUESTION_PAUSE, () => { update(); heat(); updateShares(); });
  });
  at("ask").addEventListener("submit", submit);
  at("whole").addEventListener("change", (event) => {
    state.whole = event.target.value === "1";
    sayWhole();
    update();
  });
  follow("looks-choice", "looks", () => {});
  follow("allocator", "allocator");
  follow("scorer", "relevance", () => { update(); heat(); });
  follow("show-footprints", "footprints", arrange);
  follow("show-relevance", "heat", heat);
  at("show-attention").addEventListener("change", (event) => {
    if (event.target.checked) attend();
    else if (plans[0]) { delete plans[0].attention; arrange(); }
  });
  at("show-gaze").addEventListener("change", (event) => {
    document.body.classList.toggle("gazing", event.target.checked);
    gaze.forget();
    sayWhole();
    update();
    heat();
    fillShelf();
  });
  at("open-channels").addEventListener("click", () => {
    const shelf = at("channels"), open = shelf.hidden;
    shelf.hidden = !open;
    at("open-channels").setAttribute("aria-expanded", String(open));
    fillShelf();
    if (!open && state.channel) chooseChannel(state.channel);
  });
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => setMode(radio.value));
  at("share").addEventListener("click", async () => {
    write();
    try {
      await navigator.clipboard.writeText(link());
      toast("The link is copied.");
    } catch { // there is no clipboard without https, but on this machine
      toast("The link is in the address bar.");
    }
  });
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => {
    at("export").open = false;
    if (!plans[0]) return toast("Open a file first.");
    return busy(() => save(button.dataset.export, { plan: plans[0], clip: clipping() ? clip : null, image, request: request(), footprints: state.footprints }));
  });
  at("keys").addEventListener("click", () => at("help").showModal());
  at("theme").addEventListener("click", changeTheme);
  document.addEventListener("click", (event) => { if (!at("export").contains(event.target)) at("export").open = false; });
  at("show-box").addEventListener("change", (event) => {
    document.body.classList.toggle("boxing", event.target.checked);
    panes.each((pane) => {
      pane.viewer.setMouseNavEnabled(!event.target.checked);
      pane.box = null;
      pane.draw();
    });
    if (image) note(event.target.checked ? "Draw a box: OCR reads what is delivered of it." : hint());
  });
  listenToBoxes(panes.all, () => at("show-box").checked, () => request(), note);
  listenToDrops(openFile);
  listen({ setMode, zoom: (factor) => panes.zoom(factor), turnPage, changeTheme, step, play: () => image?.times && timeline.toggle() });
}

// The first option is empty: as the model has it.
const fillSelect = (select, own, names, chosen) => select.replaceChildren(
  new Option(`${own} (own)`, "", false, !chosen), ...names.map((name) => new Option(name, name, false, name === chosen)),
);

async function start() {
  restore();
  about = await busy(() => getJson("/api/about"));
  if (!about) return;
  if (!location.hash.includes("b=")) state.budget = about.budget;
  if (!about.allocators.includes(state.allocator)) state.allocator = "";
  if (!about.scorers.includes(state.relevance)) state.relevance = "";
  fillSelect(at("allocator"), about.allocator, about.allocators, state.allocator);
  fillSelect(at("scorer"), about.relevance, about.scorers, state.relevance);
  const said = { 1: "one look", 2: "two looks", auto: "until sure" };
  at("looks-choice").replaceChildren(...about.looks.map((one) => new Option(said[one], one, false, String(one) === state.looks)));
  new Rivals(at("rivals"), at("add-rival"), about, () => { arrange(); update(); });
  startBudget(() => updateSoon(clipping() ? QUESTION_PAUSE : STEP_PAUSE));
  at("question").value = state.question;
  at("show-footprints").checked = state.footprints;
  at("show-relevance").checked = state.heat;
  at("show-box").closest("label").hidden = !about.ocr;
  at("show-attention").closest("label").hidden = at("looks-row").hidden = about.mode !== "local";
  at("submit").disabled = about.mode !== "local";
  at("submit").title = about.mode === "local" ? `Answered by ${about.model}` : "Start the server with --model to get answers";
  document.querySelector(`input[name=mode][value=${state.mode}]`).checked = true;
  at("against").hidden = state.mode !== "compare";
  arrange();
  listenToControls();
  if (state.id) await openPage(state.page, false);
  document.body.dataset.ready = "true";
}

start();
