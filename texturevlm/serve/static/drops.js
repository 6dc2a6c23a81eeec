// Files that are dropped or pasted anywhere on the page.
export function listenToDrops(open) {
  let inside = 0;
  const over = (change) => (event) => {
    event.preventDefault();
    inside += change;
    document.body.classList.toggle("dragging", inside > 0);
  };
  addEventListener("dragenter", over(1));
  addEventListener("dragleave", over(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    document.body.classList.remove("dragging");
    open(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => open(event.clipboardData.files[0]));
}
