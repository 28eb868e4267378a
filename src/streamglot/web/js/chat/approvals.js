// The questions to the user that belong to an answer. They have a feed of their own, and may be known before the events that come
// before them.

import { approvalsFeed as feed } from "../feed.js";
import { useStore } from "../lib/store.js";

export function pendingApprovals(answer) {
  return (feed.state?.approvals ?? []).filter((asked) => asked.request_id === answer.requestId);
}

/** The state of an answer as it is shown and announced: what its events say, unless it waits for approval. */
export function shownState(answer) {
  return answer.live && pendingApprovals(answer).length ? "judging" : answer.state;
}

export function useShownState(answer) {
  useStore(answer);
  useStore(feed);
  return answer ? shownState(answer) : "idle";
}
