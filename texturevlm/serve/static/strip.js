// Below the pictures: the pages of a document or the moments of a video, and the channels.
import { objectUrl } from "./api.js";

// call: path, signal and body
function picture(...call) {
  const image = document.createElement("img");
  image.alt = "";
  // Loaded when it comes near: a document may have hundreds of pages.
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    objectUrl(...call).then((url) => {
      image.onload = () => URL.revokeObjectURL(url);
      image.src = url;
    }).catch(() => {});
  }).observe(image);
  return image;
}

export function fillStrip(strip, image, choose) {
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
}

export function markPage(strip, page) {
  [...strip.children].forEach((button, index) => {
    if (index === page) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
  strip.children[page]?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// A bar below each page: the chance that the question is about it, or its part of the tokens.
export function markShares(strip, shares, say) {
  const most = Math.max(...shares, 1e-9);
  [...strip.children].forEach((button, index) => {
    const fill = document.createElement("i");
    fill.style.width = `${(100 * shares[index]) / most}%`;
    button.querySelector(".share").replaceChildren(fill);
    button.title = say(shares[index]);
  });
}

const NEEDS = { encoder: "an encoder", previous: "a frame before", gaze: "a gaze: switch it on", relevance: "an earlier look", fixations: "earlier looks", attention: "a model" };

// Path, signal and body of the call for a channel; `gaze` is of the trail in what is asked.
export function channelOf(image, name, asked, signal, small = false) {
  if (name === "gaze") return ["/api/gaze", signal, asked];
  return [`/api/channels/${image.id}/${encodeURIComponent(name)}.jpg?page=${image.page ?? 0}&small=${small}`, signal];
}

// channels: as /api/about lists them; those that an image alone does not give say what they need. asked: as for a plan
export function fillChannels(shelf, channels, image, chosen, asked, choose) {
  const drawn = (one) => one.drawn || (one.name === "gaze" && asked.trail?.length > 0);
  const buttons = [...channels].sort((one, other) => drawn(other) - drawn(one)).map((one) => {
    const { name, holds, needs } = one;
    const button = document.createElement("button"), label = document.createElement("span");
    button.type = "button";
    button.title = drawn(one) ? holds : `${holds} It needs ${NEEDS[needs] ?? needs}.`;
    button.disabled = !drawn(one);
    button.dataset.channel = name;
    label.textContent = name.replaceAll("_", " ");
    const empty = document.createElement("em");
    empty.textContent = `needs ${NEEDS[needs] ?? needs}`;
    button.append(drawn(one) ? picture(...channelOf(image, name, asked, undefined, true)) : empty, label);
    button.addEventListener("click", () => choose(name));
    return button;
  });
  shelf.replaceChildren(...buttons);
  markChannel(shelf, chosen);
}

export function markChannel(shelf, chosen) {
  for (const button of shelf.children) button.setAttribute("aria-pressed", String(button.dataset.channel === chosen));
}
