// Working and failing, said in one place.
const at = (id) => document.getElementById(id);

let working = 0;
export async function busy(work) {
  working += 1;
  at("busy").hidden = false;
  try {
    return await work();
  } catch (error) {
    toast(error.message, true);
    return undefined;
  } finally {
    working -= 1;
    at("busy").hidden = working === 0;
  }
}

export function untoast() {
  at("toast").hidden = true;
}

let toasted = 0;
export function toast(text, bad = false) {
  clearTimeout(toasted);
  at("toast").textContent = text;
  at("toast").className = bad ? "toast bad" : "toast";
  at("toast").hidden = false;
  toasted = setTimeout(untoast, bad ? 8000 : 3000);
}
