// Below the pictures: the pages of a document or the moments of a video, and the channels.
import { objectUrl } from "./api.js";

function picture(path) {
  const image = document.createElement("img");
  image.alt = "";
  // Loaded when it comes near: a document may have hundreds of pages.
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    objectUrl(path).then((url) => {
      image.onload = () => URL.revokeObjectURL(url);
      image.src = url;
    }).catch(() => {});
  }).observe(image);
  return image;
}

export function fillStrip(strip, image, choose, play) {
  strip.hidden = image.pages < 2;
  strip.setAttribute("aria-label", image.kind === "video" ? "Moments" : "Pages");
  const buttons = Array.from({ length: image.pages > 1 ? image.pages : 0 }, (_, page) => {
    const button = document.createElement("button"), name = document.createElement("span");
    button.type = "button";
    name.textContent = image.times ? `${image.times[page].toFixed(1)} s` : `${page + 1}`;
    button.setAttribute("aria-label", image.times ? `Moment at ${name.textContent}` : `Page ${name.textContent}`);
    const share = document.createElement("span"); // its place, so that nothing jumps
    share.className = "share";
    button.append(picture(`/api/thumbnails/${image.id}.jpg?page=${page}`), name, share);
    button.addEventListener("click", () => choose(page));
    return button;
  });
  strip.replaceChildren(...buttons);
  if (!image.times || image.pages < 2) return;
  const start = document.createElement("button");
  start.type = "button";
  start.className = "play";
  start.textContent = "Play";
  start.setAttribute("aria-pressed", "false");
  start.addEventListener("click", () => play(start));
  strip.prepend(start);
}

const pagesOf = (strip) => [...strip.querySelectorAll("button:not(.play)")];

export function markPage(strip, page) {
  pagesOf(strip).forEach((button, index) => {
    if (index === page) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
  pagesOf(strip)[page]?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// A bar below each page: the chance that the question is about it, or the moment's part of the tokens.
export function markShares(strip, { kind, shares }) {
  const most = Math.max(...shares, 1e-9);
  pagesOf(strip).forEach((button, index) => {
    const bar = button.querySelector(".share") ?? document.createElement("span"), fill = document.createElement("i");
    bar.className = "share";
    fill.style.width = `${(100 * shares[index]) / most}%`;
    bar.replaceChildren(fill);
    button.append(bar);
    button.title = kind === "video" ? `${shares[index]} tokens` : `${(100 * shares[index]).toFixed(1)} % likely to hold the answer`;
  });
}

// channels: as /api/about lists them; those that an image alone gives
export function fillChannels(shelf, channels, image, chosen, choose) {
  const page = image.page ? `&page=${image.page}` : "";
  const buttons = channels.filter((one) => one.drawn).map(({ name, holds }) => {
    const button = document.createElement("button"), label = document.createElement("span");
    button.type = "button";
    button.title = holds;
    button.dataset.channel = name;
    label.textContent = name.replaceAll("_", " ");
    button.append(picture(`/api/channels/${image.id}/${name}.jpg?small=true${page}`), label);
    button.addEventListener("click", () => choose(name));
    return button;
  });
  shelf.replaceChildren(...buttons);
  markChannel(shelf, chosen);
}

export function markChannel(shelf, chosen) {
  for (const button of shelf.children) button.setAttribute("aria-pressed", String(button.dataset.channel === chosen));
}
