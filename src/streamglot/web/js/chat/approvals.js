// The questions to the user that belong to an answer. They have a feed of their own, and may be known before the events that come
// before them.

import { approvalsFeed as feed } from "../feed.js";
import { useStore } from "../lib/store.js";
import { STATES } from "./answer.js";

export function pendingApprovals(answer) {
  return (feed.state?.approvals ?? []).filter((asked) => asked.request_id === answer.requestId);
}

/** The pause before the next attempt at the upstream of this answer: {upstream, seconds, attempt, attempts, asked}; null without one. */
function upstreamWait(answer) {
  return feed.state?.waits?.find((wait) => wait.request_id === answer.requestId) ?? null;
}

/** The state of an answer as it is shown and announced: what its events say, unless it waits for approval or for its upstream. */
export function shownState(answer) {
  if (!answer.live) return answer.state;
  if (pendingApprovals(answer).length) return "judging";
  return upstreamWait(answer) ? "retrying" : answer.state;
}

/** The words for the state of an answer: for a wait, who asked for it, what is left of it, and which attempt follows. */
export function shownWords(answer) {
  const state = shownState(answer);
  const wait = state === "retrying" ? upstreamWait(answer) : null;
  if (!wait) return STATES[state];
  if (answer.waitAttempt !== wait.attempt) Object.assign(answer, { waitAttempt: wait.attempt, waitBegan: performance.now() });
  const left = Math.ceil(Math.max(0, wait.seconds - (performance.now() - answer.waitBegan) / 1000));
  const why = wait.asked ? "asks to wait" : "failed";
  return `${wait.upstream} ${why}: attempt ${wait.attempt} of ${wait.attempts} in ${left} s`;
}

export function useShownState(answer) {
  useStore(answer);
  useStore(feed);
  return answer ? shownState(answer) : "idle";
}
