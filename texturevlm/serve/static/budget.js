// The slider of the budget, which is logarithmic.
import { state } from "./state.js";

const BUDGETS = [16, 1024];
const slider = document.getElementById("budget"), said = document.getElementById("budget-said");
const toBudget = (value) => Math.round(BUDGETS[0] * (BUDGETS[1] / BUDGETS[0]) ** (value / 1000));
const toSlider = (budget) => Math.round((1000 * Math.log(budget / BUDGETS[0])) / Math.log(BUDGETS[1] / BUDGETS[0]));

function say() {
  said.textContent = `${state.budget} tokens`;
  slider.setAttribute("aria-valuetext", said.textContent);
}

export function startBudget(changed) {
  slider.value = String(toSlider(state.budget));
  say();
  slider.addEventListener("input", () => {
    state.budget = toBudget(Number(slider.value));
    say();
    changed();
  });
}

export function step(by) {
  slider.value = String(Number(slider.value) + by);
  slider.dispatchEvent(new Event("input"));
}
