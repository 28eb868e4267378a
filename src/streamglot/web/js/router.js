// The address of the page is in the fragment: #/chat/SESSION, #/inspect/TURN, #/overview. No server sees it.

import { useLayoutEffect, useState } from "../vendor/htm-preact.js";

/** The route of an address: the page, the pieces after it, and the parameters after "?". */
export function parseRoute(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/").map(decode);
  return { page, rest, query: new URLSearchParams(query) };
}

function decode(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece; // no address that we made: shown as it is
  }
}

/** The address of a page: href("inspect", turnId) or href("inspect", turnId, {as: "anthropic"}). */
export function href(page, ...rest) {
  const last = rest.at(-1);
  const query = last !== null && typeof last === "object" ? new URLSearchParams(rest.pop()).toString() : "";
  const path = [page, ...rest.filter((piece) => piece !== "" && piece != null).map(encodeURIComponent)].join("/");
  return `#/${path}${query ? `?${query}` : ""}`;
}

/** Goes to an address. ``replace`` leaves no entry in the history. */
export function navigate(address, replace = false) {
  if (location.hash === address) return;
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  // before the page is painted: a link that is followed at once would be missed
  useLayoutEffect(() => {
    const changed = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
