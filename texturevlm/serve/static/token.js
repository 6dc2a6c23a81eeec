// The card of the token under the pointer: its pixels as the model gets them, next to the original.
import { bitmap } from "./api.js";
import { inAtlas } from "./paint.js";

const seen = document.getElementById("patch-seen");
const original = document.getElementById("patch-original");
const facts = [...document.querySelectorAll("#token-facts dd")];
const tiles = new Map(); // by address, the newest last
const MOST_TILES = 40;
let turn = 0;

export function showToken(plan, token, image, tile) {
  turn += 1;
  const side = seen.width;
  for (const canvas of [seen, original]) canvas.getContext("2d").clearRect(0, 0, side, side);
  if (!token) {
    for (const one of facts) one.textContent = "–";
    return;
  }
  const { patch, atlas } = plan;
  const context = seen.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(atlas.image, ...inAtlas(plan, token.slot), patch, patch, 0, 0, side, side);
  const wide = Math.hypot(...token.ddx), tall = Math.hypot(...token.ddy);
  facts[0].textContent = token.level.toFixed(1);
  facts[1].textContent = Math.abs(wide / tall - 1) < 0.01 ? wide.toFixed(1) : `${wide.toFixed(1)} × ${tall.toFixed(1)}`;
  facts[2].textContent = `${Math.round(wide * patch)} × ${Math.round(tall * patch)}`;
  facts[3].textContent = token.score < 0.01 ? token.score.toExponential(1) : token.score.toPrecision(2);
  showOriginal(token, patch, image, tile, turn);
}

async function showOriginal(token, patch, image, tile, own) {
  const side = original.width, context = original.getContext("2d");
  const extent = Math.max(Math.hypot(...token.ddx), Math.hypot(...token.ddy)) * patch;
  const level = Math.min(image.levels - 1, Math.max(0, Math.floor(Math.log2(extent / side))));
  const [wide, tall] = [image.size[1], image.size[0]].map((length) => Math.max(1, Math.floor(length / 2 ** level)));
  const across = wide / image.size[1], down = tall / image.size[0];
  const reach = [0, 1].map((axis) => ((Math.abs(token.ddx[axis]) + Math.abs(token.ddy[axis])) * patch) / 2);
  const range = (low, high, length) => {
    const first = Math.max(0, Math.floor(low / tile)), last = Math.min(Math.ceil(length / tile) - 1, Math.floor(high / tile));
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  };
  const columns = range((token.centre[0] - reach[0]) * across, (token.centre[0] + reach[0]) * across, wide);
  const rows = range((token.centre[1] - reach[1]) * down, (token.centre[1] + reach[1]) * down, tall);
  const parts = await Promise.all(columns.flatMap((x) => rows.map(async (y) => ({ x, y, picture: await tileOf(image, level, x, y) }))));
  if (own !== turn) return;
  // The inverse of the footprint's axes: pixels of the image → pixels of the card.
  const scale = side / patch, [a, b] = token.ddx, [c, d] = token.ddy, determinant = a * d - b * c;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, side, side);
  context.setTransform((scale * d) / determinant, (-scale * b) / determinant, (-scale * c) / determinant, (scale * a) / determinant, side / 2, side / 2);
  context.translate(-token.centre[0], -token.centre[1]);
  for (const { x, y, picture } of parts) {
    if (picture) context.drawImage(picture, (x * tile) / across, (y * tile) / down, picture.width / across, picture.height / down);
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
}

async function tileOf(image, level, x, y) {
  const path = `/api/tiles/${image.id}/${level}/${x}_${y}.jpg${image.page ? `?page=${image.page}` : ""}`;
  if (!tiles.has(path)) {
    tiles.set(path, bitmap(path).catch(() => null));
    if (tiles.size > MOST_TILES) tiles.delete(tiles.keys().next().value);
  }
  return tiles.get(path);
}
