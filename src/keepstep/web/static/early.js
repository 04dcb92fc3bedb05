// Runs before anything is drawn: the theme that was chosen, so that no page flashes in the other one.
try {
  const theme = localStorage.getItem("keepstep-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing follows the system.
}
