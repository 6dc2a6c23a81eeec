// The page: settings in, plans out. Every change of a setting asks for a new plan and aborts the one before.
import { bitmap, getJson, newest, postJson, upload } from "./api.js";
import { ask, forgetAnswer, note } from "./answer.js";
import { save } from "./export.js";
import { listen } from "./keys.js";
import { levelRange, ordered, tokenAt } from "./paint.js";
import { Pane } from "./pane.js";
import { listenToBoxes } from "./read.js";
import { link, remember, restore, state } from "./state.js";
import { fillChannels, fillStrip, markChannel, markPage, markShares } from "./strip.js";
import { showToken } from "./token.js";

const at = (id) => document.getElementById(id);
const BUDGETS = [16, 1024];
const QUESTION_PAUSE = 250, STEP_PAUSE = 40; // milliseconds
const onlyPlan = newest(), onlyOther = newest(), onlyHeat = newest(), onlyChannel = newest(), onlyFile = newest(), onlyShares = newest(), onlyAttention = newest();
let about = null, image = null, plan = null, other = null, gaze = null;

const tell = { moved: inStep, pointed };
const panes = [new Pane(at("pane-a"), tell), new Pane(at("pane-b"), tell)];

// ---- working and failing, said in one place
let working = 0;
async function busy(work) {
  working += 1;
  at("busy").hidden = false;
  try {
    return await work();
  } catch (error) {
    toast(error.message, true);
    return undefined;
  } finally {
    working -= 1;
    at("busy").hidden = working > 0 ? false : true;
  }
}

let toasted = 0;
function toast(text, bad = false) {
  clearTimeout(toasted);
  at("toast").textContent = text;
  at("toast").className = bad ? "toast bad" : "toast";
  at("toast").hidden = false;
  toasted = setTimeout(() => { at("toast").hidden = true; }, bad ? 8000 : 3000);
}

// ---- budget: the slider is logarithmic
const toBudget = (value) => Math.round(BUDGETS[0] * (BUDGETS[1] / BUDGETS[0]) ** (value / 1000));
const toSlider = (budget) => Math.round((1000 * Math.log(budget / BUDGETS[0])) / Math.log(BUDGETS[1] / BUDGETS[0]));
function sayBudget() {
  at("budget-said").textContent = `${state.budget} tokens`;
  at("budget").setAttribute("aria-valuetext", `${state.budget} tokens`);
}

// ---- plans
function request(allocator, relevance) {
  const { id, page, question, budget } = state;
  return { id, page, question, budget, patch: about.patch, allocator, relevance, gaze };
}

async function planned(allocator, relevance, signal) {
  const found = await postJson("/api/plan", request(allocator, relevance), signal);
  const blob = await (await fetch(found.atlas.url, { signal })).blob();
  found.atlas.image = await createImageBitmap(blob);
  found.sorted = ordered(found);
  return found;
}

async function update() {
  if (!image) return;
  remember();
  const began = performance.now();
  const wanted = [busy(() => onlyPlan((signal) => planned(state.allocator, state.relevance, signal)))];
  const against = state.mode === "compare";
  if (against) wanted.push(busy(() => onlyOther((signal) => planned(state.allocatorB, state.relevanceB, signal))));
  const [first, second] = await Promise.all(wanted);
  if (!first) return; // a newer one is under way
  plan = first;
  if (against && second) other = second;
  arrange();
  document.body.dataset.milliseconds = String(Math.round(performance.now() - began));
  document.body.dataset.budget = String(plan.budget);
  updateAttention();
}

let paused = 0, sharing = 0;
function updateSoon(milliseconds) {
  clearTimeout(paused);
  paused = setTimeout(update, milliseconds);
}

const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
const describe = (one) => `${one.scorer} · ${one.used} tokens · ${percent(one.value)} legible`;

function arrange() {
  const [left, right] = panes;
  const compare = state.mode === "compare";
  left.plan = plan;
  right.plan = compare ? other : plan;
  left.footprints = state.footprints && state.mode !== "difference";
  right.footprints = state.footprints && compare;
  for (const pane of panes) {
    pane.highlight = null;
    pane.note.title = "legible: the expected share of what matters that can be read";
  }
  // One colour means one level in both pictures.
  const shown = panes.map((pane) => pane.plan).filter(Boolean), ranges = shown.map((one) => levelRange(one.sorted));
  const levels = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  for (const one of shown) one.levels = levels;
  const size = image ? `${image.size[1]} × ${image.size[0]} px` : "";
  if (compare) {
    left.show("seen", `A: ${state.allocator}`, plan ? describe(plan) : "");
    right.show("seen", `B: ${state.allocatorB}`, other ? describe(other) : "");
  } else {
    left.show("original", "Original", size);
    if (state.mode === "look") right.show("seen", "What the model sees", plan ? describe(plan) : "");
    else right.show("difference", "What it does not see", "black: as in the original");
  }
  if (!plan) return;
  const [low, high] = levels;
  at("finest").textContent = `${(2 ** low).toFixed(1)} px per sample`;
  at("coarsest").textContent = high - low > 0.01 ? `${(2 ** high).toFixed(1)} px` : "";
  const full = plan.full.toLocaleString("en");
  at("budget-hint").textContent = plan.used < plan.full ? `${percent(plan.used / plan.full)} of the ${full} tokens at full resolution` : `${full} tokens show it at full resolution`;
  showToken(null);
}

async function updateHeat() {
  if (!image || !state.heat) {
    for (const pane of panes) { pane.relevance = null; pane.draw(); }
    return;
  }
  const { id, page, question, relevance } = state;
  const query = new URLSearchParams({ page, question, relevance, patch: about.patch });
  const found = await busy(() => onlyHeat((signal) => bitmap(`/api/relevance/${id}.png?${query}`, signal)));
  if (!found) return;
  panes[0].relevance = found;
  panes[0].draw();
}

// Which pages the question is about; how many tokens each moment gets.
async function updateShares() {
  if (!image || image.pages < 2) return;
  const asked = { ...request(state.allocator, state.relevance), gaze: null };
  const found = await busy(() => onlyShares((signal) => postJson("/api/shares", asked, signal)));
  if (found) markShares(at("strip"), found);
}

// It costs a pass through half of the model: asked for after the plan is drawn.
async function updateAttention() {
  const own = plan;
  if (!own || !at("show-attention").checked) return;
  const asked = { ...request(state.allocator, state.relevance), gaze: null };
  const found = gaze ? null : await busy(() => onlyAttention((signal) => postJson("/api/attention", asked, signal)));
  if (!found || own !== plan || found.attention.length !== own.used) return;
  own.attention = found.attention;
  for (const pane of panes) pane.draw();
}

async function updateChannel() {
  markChannel(at("channels"), state.channel);
  let found = null;
  if (image && state.channel) {
    const path = `/api/channels/${image.id}/${encodeURIComponent(state.channel)}.jpg?page=${state.page}`;
    found = await busy(() => onlyChannel((signal) => bitmap(path, signal)));
    if (!found) return;
  }
  panes[0].channel = found;
  panes[0].draw();
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
  Object.assign(state, { id: found.id, page: 0, channel: "", view: "" });
  await show({ ...found, page: 0 });
}

async function openPage(page, known = true) {
  const found = await busy(() => onlyFile((signal) => getJson(`/api/images/${state.id}?page=${page}`, signal)));
  if (!found) return false;
  Object.assign(state, { page }, known ? { view: "" } : {});
  await show(found);
  return true;
}

async function show(found) {
  const fresh = found.id !== image?.id;
  image = found;
  plan = other = gaze = null;
  forgetAnswer(hint());
  at("empty").hidden = true;
  at("export").hidden = false;
  at("share").disabled = false;
  at("file-name").textContent = `${image.name || "image"} · ${image.size[1]} × ${image.size[0]}`;
  document.title = `${image.name || "image"} · texturevlm`;
  for (const pane of panes) pane.plan = pane.channel = pane.relevance = pane.box = null;
  if (fresh) fillStrip(at("strip"), image, (page) => { playing = false; openPage(page); }, play);
  markPage(at("strip"), image.page ?? 0);
  if (fresh) updateShares();
  if (!at("channels").hidden) fillChannels(at("channels"), about.channels, image, state.channel, chooseChannel);
  arrange();
  const kept = state.view.split(",").map(Number);
  opening = true; // until both stand: one must not follow the picture before
  await Promise.all(panes.map((pane) => pane.open(image, about.tile)));
  opening = false;
  panes[0].home(true);
  if (kept.length === 4 && kept.every(Number.isFinite)) {
    panes[0].viewer.viewport.fitBounds(new OpenSeadragon.Rect(...kept), true);
    panes[0].atHome = false;
  }
  panes[0].told = ""; // whatever put the last picture there
  inStep(panes[0]);
  await Promise.all([update(), updateHeat(), updateChannel()]);
}

const hint = () => (about.mode === "local" ? `Type a question: ${about.model} answers here.` : "No model answers: start the server with --model.");

// ---- zoom in step
let opening = false;
function inStep(pane) {
  // A picture that stands where the other one put it is no news: to follow it would end the other's movement.
  if (opening || !pane.viewer.world.getItemCount() || pane.stand() === pane.told) return;
  for (const one of panes) if (one !== pane && one.viewer.world.getItemCount()) one.follow(pane);
  const { x, y, width, height } = pane.viewer.viewport.getBounds(true);
  state.view = [x, y, width, height].map((value) => value.toFixed(4)).join(",");
  remember();
}

function zoom(factor) {
  const { viewport } = panes[0].viewer;
  panes[0].atHome = false;
  if (factor) viewport.zoomBy(factor);
  else panes[0].home();
}

// ---- pointer: details of a token; or the gaze
let looked = 0;
function pointed(pane, point) {
  if (at("show-gaze").checked && point) {
    const now = performance.now();
    if (now - looked < 60) return;
    looked = now;
    gaze = [Math.round(point.x), Math.round(point.y)];
    update();
    return;
  }
  if (!pane.plan) return;
  const token = point ? tokenAt(pane.plan, point.x, point.y) : null;
  if (token === pane.highlight) return;
  for (const one of panes) {
    one.highlight = one.plan === pane.plan ? token : null;
    one.draw();
  }
  showToken(pane.plan, token, image, about.tile);
}

// ---- controls
function chooseChannel(name) {
  state.channel = state.channel === name ? "" : name;
  remember();
  updateChannel();
}

function setMode(mode) {
  state.mode = mode;
  document.querySelector(`input[name=mode][value=${mode}]`).checked = true;
  at("against").hidden = mode !== "compare";
  other = null;
  arrange();
  update();
}

function fillSelect(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
}

function follow(id, name, then = update) {
  at(id).addEventListener("change", (event) => {
    state[name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
    remember();
    then();
  });
}

function listenToControls() {
  at("file").addEventListener("change", (event) => { openFile(event.target.files[0]); event.target.value = ""; });
  at("budget").addEventListener("input", (event) => {
    state.budget = toBudget(Number(event.target.value));
    sayBudget();
    updateSoon(STEP_PAUSE);
    if (image?.kind === "video") {
      clearTimeout(sharing);
      sharing = setTimeout(updateShares, QUESTION_PAUSE);
    }
  });
  at("question").addEventListener("input", (event) => {
    state.question = event.target.value;
    clearTimeout(paused);
    paused = setTimeout(() => { update(); updateHeat(); updateShares(); }, QUESTION_PAUSE);
  });
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!image) return toast("Open a file first.");
    if (!state.question.trim()) return at("question").focus();
    return ask({ ...request(state.allocator, state.relevance), gaze: null, whole: false });
  });
  follow("allocator", "allocator");
  follow("scorer", "relevance", () => { update(); updateHeat(); });
  follow("allocator-b", "allocatorB");
  follow("scorer-b", "relevanceB");
  follow("show-footprints", "footprints", arrange);
  follow("show-relevance", "heat", updateHeat);
  at("show-attention").addEventListener("change", (event) => {
    if (event.target.checked) updateAttention();
    else if (plan) { delete plan.attention; arrange(); }
  });
  at("show-gaze").addEventListener("change", (event) => {
    document.body.classList.toggle("gazing", event.target.checked);
    gaze = null;
    update();
  });
  at("open-channels").addEventListener("click", () => {
    const shelf = at("channels"), open = shelf.hidden;
    shelf.hidden = !open;
    at("open-channels").setAttribute("aria-expanded", String(open));
    if (open && image) fillChannels(shelf, about.channels, image, state.channel, chooseChannel);
    if (!open && state.channel) chooseChannel(state.channel);
  });
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => setMode(radio.value));
  at("share").addEventListener("click", async () => {
    history.replaceState(null, "", link());
    await navigator.clipboard?.writeText(link()).then(() => toast("The link is copied."), () => toast("The link is in the address bar."));
  });
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => {
    at("export").open = false;
    if (!plan) return toast("Open a file first.");
    const asked = { ...request(state.allocator, state.relevance), scorer: plan.scorer };
    return busy(() => save(button.dataset.export, { plan, image, request: asked, footprints: state.footprints }));
  });
  at("keys").addEventListener("click", () => at("help").showModal());
  at("theme").addEventListener("click", changeTheme);
  document.addEventListener("click", (event) => { if (!at("export").contains(event.target)) at("export").open = false; });
  at("show-box").addEventListener("change", (event) => {
    document.body.classList.toggle("boxing", event.target.checked);
    for (const pane of panes) {
      pane.viewer.setMouseNavEnabled(!event.target.checked);
      pane.box = null;
      pane.draw();
    }
    if (image) note(event.target.checked ? "Draw a box: OCR reads what is delivered of it." : hint());
  });
  listenToBoxes(panes, () => at("show-box").checked, () => request(state.allocator, state.relevance), note);
  listenToDrops();
  listen({ setMode, zoom, turnPage, changeTheme, step });
}

function listenToDrops() {
  let inside = 0;
  const over = (change) => (event) => {
    event.preventDefault();
    inside += change;
    document.body.classList.toggle("dragging", inside > 0);
  };
  addEventListener("dragenter", over(1));
  addEventListener("dragleave", over(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    document.body.classList.remove("dragging");
    openFile(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => openFile(event.clipboardData.files[0]));
}

function changeTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = dark === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

// Play: from moment to moment, as fast as they can be shown, but not faster than the video.
let playing = false;
async function play(button) {
  playing = !playing;
  button.setAttribute("aria-pressed", String(playing));
  while (playing && image?.times) {
    const page = ((image.page ?? 0) + 1) % image.pages, began = performance.now();
    const wanted = page ? 1000 * (image.times[page] - image.times[page - 1]) : 800;
    if (!(await openPage(page))) playing = false;
    await new Promise((resolve) => { setTimeout(resolve, Math.max(0, wanted - (performance.now() - began))); });
  }
  button.setAttribute("aria-pressed", "false");
}

function turnPage(by) {
  const page = (image?.page ?? 0) + by;
  if (image && page >= 0 && page < image.pages) openPage(page);
}

function step(by) {
  at("budget").value = String(Number(at("budget").value) + by);
  at("budget").dispatchEvent(new Event("input"));
}

async function start() {
  restore();
  about = await busy(() => getJson("/api/about"));
  if (!about) return;
  if (!location.hash.includes("b=")) state.budget = about.budget;
  fillSelect(at("allocator"), about.allocators, state.allocator);
  fillSelect(at("allocator-b"), about.allocators, state.allocatorB);
  fillSelect(at("scorer"), about.scorers, state.relevance);
  fillSelect(at("scorer-b"), about.scorers, state.relevanceB);
  at("budget").value = String(toSlider(state.budget));
  at("question").value = state.question;
  at("show-footprints").checked = state.footprints;
  at("show-relevance").checked = state.heat;
  at("show-box").closest("label").hidden = !about.ocr;
  at("show-attention").closest("label").hidden = about.mode !== "local";
  at("submit").disabled = about.mode !== "local";
  at("submit").title = about.mode === "local" ? `Answered by ${about.model}` : "Start the server with --model to get answers";
  document.querySelector(`input[name=mode][value=${state.mode}]`).checked = true;
  at("against").hidden = state.mode !== "compare";
  sayBudget();
  arrange();
  listenToControls();
  if (state.id) await openPage(state.page, false);
  document.body.dataset.ready = "true";
}

start();
