// Runs before the first paint: otherwise a dark page would flash white at three in the morning.
{
  const choice = localStorage.getItem("theme") ?? "auto";
  const dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
