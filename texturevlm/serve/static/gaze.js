// The pointer as the eye: where it is now, and where it rested before.
const MOST = 64; // points
const NEAR = 0.03; // of the longer side: a point that is nearer prolongs the rest of the last one
const LONGEST = 1.0; // seconds that one movement counts at most

export class Gaze {
  constructor() {
    this.forget();
  }

  forget() {
    this.now = null;
    this.trail = [];
    this.seen = 0;
  }

  // point: { x, y } in pixels of the image; size: [height, width]
  look(point, size, clock = performance.now()) {
    const rest = this.now ? Math.min(LONGEST, (clock - this.seen) / 1000) : 0.05;
    const last = this.trail.at(-1);
    this.seen = clock;
    this.now = [Math.round(point.x), Math.round(point.y)];
    if (last && Math.hypot(last[0] - point.x, last[1] - point.y) < NEAR * Math.max(...size)) last[2] += rest;
    else this.trail.push([...this.now, rest]);
    if (this.trail.length > MOST) this.trail.shift();
  }

  leave() {
    this.now = null;
  }
}
