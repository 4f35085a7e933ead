// Runs before the first paint, so that a stored theme never flashes. The switch itself is in js/shell.js.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  let choice = new URLSearchParams(location.search).get("theme");
  try {
    choice = choice || localStorage.getItem("podium.theme");
  } catch {
    // Storage is off: the system's theme it is.
  }
  if (choice === "light" || choice === "dark") root.dataset.theme = choice;
})();
