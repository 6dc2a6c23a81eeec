// A whole video under one budget: a timeline of what changes and of tokens, and playing at any speed.
import { bitmap } from "./api.js";
import { levelRange, ordered } from "./paint.js";

const SIDE = 960; // pixels along the longer side of a frame that is played
const AHEAD = 8; // frames that are fetched before they are due
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 44;

// What /api/clip answered, with a plan per moment: its own tokens over those of the moments before.
export function plansOf(clip) {
  const plans = clip.moments.map((moment, page) => {
    const tokens = moment.tokens ?? { centre: [], ddx: [], ddy: [], level: [], score: [] };
    const own = { ...clip, page, tokens, used: moment.used, full: clip.full, whole: clip.used };
    own.sorted = ordered(own).map((token) => ({ ...token, slot: token.slot + moment.first }));
    return own;
  });
  const levels = levelRange(plans.flatMap((one) => one.sorted));
  plans.forEach((one, page) => Object.assign(one, { levels, range: levels, under: plans.slice(0, page) }));
  return plans;
}

export class Timeline {
  // choose(page): the user picked a moment; showFrame(page, picture): it plays; ended(): it plays no more
  constructor(parts, { choose, showFrame, ended }) {
    Object.assign(this, parts, { choose, showFrame, ended });
    this.playing = false;
    this.times = [];
    this.play.addEventListener("click", () => this.toggle());
    this.track.addEventListener("pointerdown", (event) => this.pointed(event));
    this.track.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.pick(Math.min(Math.max(this.page + by, 0), this.times.length - 1));
    });
  }

  open(image) {
    this.stop();
    this.place.hidden = image.kind !== "video";
    this.image = image;
    this.times = image.times ?? [];
    this.frames = new Map();
    this.lasts = (this.times.at(-1) ?? 0) + 0.5;
    this.mark(image.page ?? 0);
    this.draw(null);
  }

  pick(page) {
    this.stop();
    this.choose(page);
  }

  pointed(event) {
    const box = this.track.getBoundingClientRect();
    this.pick(this.at(((event.clientX - box.left) / box.width) * this.lasts));
  }

  // The moment that is shown at a time.
  at(time) {
    const later = this.times.findIndex((one) => one > time);
    return later < 0 ? this.times.length - 1 : Math.max(0, later - 1);
  }

  mark(page) {
    this.page = page;
    const time = this.times[page] ?? 0;
    this.said.textContent = `${time.toFixed(1)} s`;
    this.track.setAttribute("aria-valuemax", String(Math.max(0, this.times.length - 1)));
    this.track.setAttribute("aria-valuenow", String(page));
    this.track.setAttribute("aria-valuetext", `${time.toFixed(1)} seconds`);
    this.head?.setAttribute("x", String((100 * time) / this.lasts));
  }

  // Above the line what changed, below it the tokens.
  draw(clip) {
    const most = Math.max(1, ...(clip?.moments ?? []).map((one) => one.used));
    const bars = (clip?.moments ?? []).flatMap((one, index) => {
      const x = (100 * one.time) / this.lasts, next = clip.moments[index + 1]?.time ?? this.lasts;
      const width = Math.max(0.3, (100 * (next - one.time)) / this.lasts - 0.25);
      const up = (HEIGHT / 2 - 2) * one.changed, down = (HEIGHT / 2 - 2) * (one.used / most);
      const title = `${one.time.toFixed(1)} s: ${(100 * one.changed).toFixed(0)} % changed, ${one.used} tokens`;
      return [bar("changed", x, HEIGHT / 2 - up, width, up, title), bar("spent", x, HEIGHT / 2 + 1, width, down, title)];
    });
    this.head = bar("head", 0, 0, 0.35, HEIGHT, "");
    this.track.replaceChildren(bar("line", 0, HEIGHT / 2, 100, 1, ""), ...bars, this.head);
    this.mark(this.page);
  }

  toggle() {
    if (this.playing) this.stop();
    else this.run();
  }

  stop() {
    if (!this.playing) return;
    this.playing = false;
    this.play.setAttribute("aria-pressed", "false");
    this.play.textContent = "Play";
    this.ended(this.page);
  }

  fetched(page) {
    if (page >= this.times.length) return undefined;
    if (!this.frames.has(page)) {
      this.frames.set(page, null);
      const own = this.frames;
      bitmap(`/api/thumbnails/${this.image.id}.jpg?page=${page}&side=${SIDE}`).then((found) => own.set(page, found), () => this.stop());
    }
    return this.frames.get(page);
  }

  // The clock runs as fast as the speed says, and waits for a frame that is not there yet.
  run() {
    this.playing = true;
    this.play.setAttribute("aria-pressed", "true");
    this.play.textContent = "Pause";
    let time = this.page >= this.times.length - 1 ? 0 : this.times[this.page], last = performance.now(), shown = -1;
    const step = (now) => {
      if (!this.playing) return undefined;
      const page = this.at(time);
      for (let ahead = 0; ahead < AHEAD; ahead += 1) this.fetched(page + ahead);
      const frame = this.fetched(page);
      if (frame) {
        if (page !== shown) {
          shown = page;
          this.mark(page);
          this.showFrame(page, frame);
        }
        time += ((now - last) / 1000) * Number(this.speed.value);
      }
      last = now;
      if (time < this.lasts) return requestAnimationFrame(step);
      this.mark(this.times.length - 1); // a slow browser may have jumped over it
      return this.stop();
    };
    requestAnimationFrame(step);
  }
}

function bar(kind, x, y, width, height, title) {
  const found = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, y, width, height: Math.max(0, height), class: kind })) found.setAttribute(name, String(value));
  if (!title) return found;
  const said = document.createElementNS(SVG, "title");
  said.textContent = title;
  found.append(said);
  return found;
}
