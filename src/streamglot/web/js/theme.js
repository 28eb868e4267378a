// Runs before the first paint, so that the chosen theme does not flash. It is no module for that reason.
"use strict";
{
  const chosen = localStorage.getItem("streamglot.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
