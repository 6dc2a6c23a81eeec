// Before the first paint, so that nothing flashes.
(() => {
  const kept = localStorage.getItem("theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
