// Drawing on the canvas over a picture: what the tokens deliver, footprints, relevance.
const RAMP = [[253, 231, 37], [122, 209, 81], [34, 168, 132], [42, 120, 142], [65, 68, 135], [68, 1, 84]];

// From fine, 0, to coarse, 1; the same colours as texturevlm/draw.py.
export function rampColour(position, alpha = 1) {
  const at = Math.min(Math.max(position, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mixed = RAMP[low].map((value, index) => Math.round(value + (RAMP[low + 1][index] - value) * (at - low)));
  return `rgb(${mixed.join(" ")} / ${alpha})`;
}

// A plan as the drawing needs it: coarse tokens first, finer ones are painted over them.
export function ordered(plan) {
  const { centre, ddx, ddy, level, score } = plan.tokens;
  const area = ddx.map((axis, slot) => Math.abs(axis[0] * ddy[slot][1] - axis[1] * ddy[slot][0]));
  const order = [...centre.keys()].sort((one, other) => area[other] - area[one]);
  return order.map((slot) => ({
    slot, centre: centre[slot], ddx: ddx[slot], ddy: ddy[slot], level: level[slot], score: score[slot], area: area[slot],
  }));
}

export function levelRange(tokens) {
  const levels = tokens.length ? tokens.map((one) => one.level) : [0];
  const low = Math.min(...levels);
  return [low, Math.max(...levels, low + 1e-6)];
}

// where: { x, y, scale }: image pixels → canvas pixels.
function place(context, where, token, patch) {
  const { scale, x, y } = where;
  const [a, b] = token.ddx, [c, d] = token.ddy;
  const [u, v] = token.centre;
  context.setTransform(a * scale, b * scale, c * scale, d * scale, x + u * scale, y + v * scale);
  return patch / 2;
}

export function visible(context, where, token, patch) {
  const [u, v] = token.centre;
  const reach = (Math.abs(token.ddx[0]) + Math.abs(token.ddx[1]) + Math.abs(token.ddy[0]) + Math.abs(token.ddy[1])) * patch * 0.5 * where.scale;
  const x = where.x + u * where.scale, y = where.y + v * where.scale;
  return x + reach > 0 && y + reach > 0 && x - reach < context.canvas.width && y - reach < context.canvas.height;
}

// Where the pixels of a token begin in the atlas.
export function inAtlas({ patch, atlas }, slot) {
  const cell = patch + 2 * atlas.gutter;
  return [(slot % atlas.columns) * cell + atlas.gutter, Math.floor(slot / atlas.columns) * cell + atlas.gutter];
}

// The pixels of every token, enlarged to its footprint; grey where there is no token. In a video those of the moments
// before lie under them.
export function paintSeen(context, where, plan) {
  const { patch, size, grey, atlas } = plan, sorted = [...(plan.under ?? []), plan].flatMap((one) => one.sorted);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.save();
  context.beginPath();
  context.rect(where.x, where.y, size[1] * where.scale, size[0] * where.scale);
  context.clip();
  context.fillStyle = `rgb(${grey} ${grey} ${grey})`;
  context.fillRect(where.x, where.y, size[1] * where.scale, size[0] * where.scale);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  for (const token of sorted) {
    if (!visible(context, where, token, patch)) continue;
    const half = place(context, where, token, patch);
    const [left, top] = inAtlas(plan, token.slot);
    // A hair wider than the footprint: neighbours would show a seam where edges fall between pixels.
    const seam = 0.5 / (Math.max(Math.hypot(...token.ddx), Math.hypot(...token.ddy)) * where.scale);
    const side = patch + 2 * seam;
    context.drawImage(atlas.image, left, top, patch, patch, -half - seam, -half - seam, side, side);
  }
  context.restore();
  context.setTransform(1, 0, 0, 1, 0, 0);
}

function outline(context, where, token, patch) {
  const half = place(context, where, token, patch);
  context.beginPath();
  context.rect(-half, -half, patch, patch);
  context.setTransform(1, 0, 0, 1, 0, 0); // so that lines are equally thick
}

export function paintFootprints(context, where, plan, { wash = 0.12 } = {}) {
  const [low, high] = plan.levels;
  for (const token of plan.sorted) {
    if (!visible(context, where, token, plan.patch)) continue;
    const position = (token.level - low) / (high - low);
    outline(context, where, token, plan.patch);
    context.fillStyle = rampColour(position, wash);
    context.fill();
    // Thin where footprints are small on the screen.
    const side = Math.sqrt(token.area) * plan.patch * where.scale;
    const line = Math.min(1.3 * devicePixelRatio, Math.max(0.5, side / 28));
    context.lineWidth = 1.8 * line; // an edge: bright colours would vanish on paper, dark ones in a dark picture
    context.strokeStyle = position < 0.5 ? "rgb(10 20 30 / .35)" : "rgb(255 255 255 / .5)";
    context.stroke();
    context.lineWidth = line;
    context.strokeStyle = rampColour(position);
    context.stroke();
  }
}

// How much the question attends to each token: the fuller the colour, the more.
export function paintAttention(context, where, plan, attention) {
  const most = Math.max(...attention, 1e-12);
  for (const token of plan.sorted) {
    if (!visible(context, where, token, plan.patch)) continue;
    outline(context, where, token, plan.patch);
    context.fillStyle = `rgb(216 27 96 / ${0.85 * Math.sqrt(attention[token.slot] / most)})`;
    context.fill();
  }
}

// Where the eye rested: larger is longer.
export function paintTrail(context, where, trail, now) {
  context.setTransform(1, 0, 0, 1, 0, 0);
  const at = ([x, y]) => [where.x + x * where.scale, where.y + y * where.scale];
  context.lineWidth = 1.5 * devicePixelRatio;
  context.strokeStyle = "rgb(216 27 96 / .55)";
  context.beginPath();
  for (const point of trail) context.lineTo(...at(point));
  context.stroke();
  for (const point of trail) disc(context, at(point), 4 + 7 * Math.sqrt(Math.min(point[2], 4)), "rgb(216 27 96 / .28)");
  if (now) disc(context, at(now), 5, "#d81b60");
}

function disc(context, [x, y], radius, colour) {
  context.beginPath();
  context.arc(x, y, radius * devicePixelRatio, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
}

export function paintHighlight(context, where, plan, token) {
  outline(context, where, token, plan.patch);
  strokeTwice(context, [5, "rgb(0 0 0 / .75)"], [2, "#fff"]);
}

// Wide, then narrow on top of it, so that the line is seen on any ground.
function strokeTwice(context, ...lines) {
  for (const [width, colour] of lines) {
    context.lineWidth = width * devicePixelRatio;
    context.strokeStyle = colour;
    context.stroke();
  }
}

// box: left, top, right, bottom in pixels of the image
export function paintBox(context, where, [left, top, right, bottom]) {
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.beginPath();
  context.rect(where.x + left * where.scale, where.y + top * where.scale, (right - left) * where.scale, (bottom - top) * where.scale);
  strokeTwice(context, [3, "#fff"], [1.5, "#c2185b"]);
}

// A picture stretched over the whole image: relevance, a channel.
export function paintOver(context, where, size, image, alpha = 1) {
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalAlpha = alpha;
  context.imageSmoothingEnabled = true;
  context.drawImage(image, where.x, where.y, size[1] * where.scale, size[0] * where.scale);
  context.globalAlpha = 1;
}

// The finest token under a point of the image.
export function tokenAt(plan, x, y) {
  for (let index = plan.sorted.length - 1; index >= 0; index -= 1) {
    const { centre, ddx, ddy } = plan.sorted[index];
    const dx = x - centre[0], dy = y - centre[1];
    const determinant = ddx[0] * ddy[1] - ddy[0] * ddx[1];
    const u = (dx * ddy[1] - dy * ddy[0]) / determinant, v = (dy * ddx[0] - dx * ddx[1]) / determinant;
    if (Math.abs(u) <= plan.patch / 2 && Math.abs(v) <= plan.patch / 2) return plan.sorted[index];
  }
  return null;
}
