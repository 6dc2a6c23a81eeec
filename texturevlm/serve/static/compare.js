// The plans that the first one is compared with: a row of two choices for each, kept as one text in the link.
import { state } from "./state.js";

const MOST = 3;
const NEXT = ["resize", "crops", "quadtree", "density"]; // what "Add" offers first, where it exists
const LETTERS = "bcd";

// allocator:scorer, …
export const rivals = () => state.against.split(",").filter(Boolean).map((one) => {
  const [allocator, relevance] = one.split(":");
  return { allocator, relevance };
});

const write = (list) => { state.against = list.map((one) => `${one.allocator}:${one.relevance}`).join(","); };

function select(id, label, own, names, chosen, change) {
  const found = document.createElement("select");
  found.id = id;
  found.setAttribute("aria-label", label);
  found.append(...["", ...names].map((name) => new Option(name || `${own} (own)`, name, false, name === chosen)));
  found.addEventListener("change", () => change(found.value));
  return found;
}

export class Rivals {
  constructor(list, adding, about, changed) {
    Object.assign(this, { list, adding, about, changed });
    const known = rivals().filter((one) => ["", ...about.allocators].includes(one.allocator) && ["", ...about.scorers].includes(one.relevance));
    write(known.length ? known.slice(0, MOST) : [{ allocator: "resize", relevance: "" }]);
    adding.addEventListener("click", () => this.add());
    this.fill();
  }

  add() {
    const used = [state.allocator, ...rivals().map((one) => one.allocator)];
    const allocator = [...NEXT, ...this.about.allocators].find((name) => this.about.allocators.includes(name) && !used.includes(name));
    this.set([...rivals(), { allocator: allocator ?? "resize", relevance: state.relevance }]);
  }

  set(list) {
    write(list);
    this.fill();
    this.changed();
  }

  fill() {
    const list = rivals();
    this.list.replaceChildren(...list.map((one, index) => {
      const row = document.createElement("li"), letter = document.createElement("b"), remove = document.createElement("button");
      const change = (name) => (value) => this.set(list.map((other, at) => (at === index ? { ...other, [name]: value } : other)));
      letter.textContent = LETTERS[index].toUpperCase();
      remove.type = "button";
      remove.className = "quiet icon";
      remove.textContent = "×";
      remove.disabled = list.length < 2;
      remove.setAttribute("aria-label", `Remove plan ${letter.textContent}`);
      remove.addEventListener("click", () => this.set(list.filter((_, at) => at !== index)));
      row.append(
        letter,
        select(`allocator-${LETTERS[index]}`, `Allocator of plan ${letter.textContent}`, this.about.allocator, this.about.allocators, one.allocator, change("allocator")),
        select(`scorer-${LETTERS[index]}`, `Scorer of plan ${letter.textContent}`, this.about.relevance, this.about.scorers, one.relevance, change("relevance")),
        remove,
      );
      return row;
    }));
    this.adding.disabled = list.length >= MOST;
  }
}
