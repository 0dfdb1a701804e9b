/** Where caravans are along the log: the head at the right end, the last one behind it near the left. */
const BEHIND_MARGIN = 1.15;

/** A lane a shard. `head` is {shard: position}; each caravan has `position`, {shard: position}. */
export function shardLanes(head, caravans) {
  const shards = [...new Set([...Object.keys(head), ...caravans.flatMap((one) => Object.keys(one.position ?? {}))])];
  shards.sort((one, other) => Number(one) - Number(other));
  const lags = shards.map((shard) => caravans.map((one) => behind(head[shard], one.position?.[shard])));
  const farthest = lags.flat().reduce((most, lag) => Math.max(most, lag ?? 0), 1) * BEHIND_MARGIN;
  return shards.map((shard, row) => ({
    shard,
    head: head[shard],
    stops: caravans
      .map((one, index) => ({ index, lead: Boolean(one.lead), at: one.position?.[shard], lag: lags[row][index] }))
      .filter(({ lag }) => lag !== null)
      .map((stop) => ({ ...stop, share: 1 - stop.lag / farthest })),
  }));
}

/** One lane for the whole log, if all that is told is how many updates each caravan is `behind`. */
export function wholeLane(caravans) {
  const farthest = caravans.reduce((most, { behind: lag }) => Math.max(most, lag ?? 0), 1) * BEHIND_MARGIN;
  const stops = caravans
    .map((one, index) => ({ index, lead: Boolean(one.lead), lag: one.behind ?? null }))
    .filter(({ lag }) => lag !== null)
    .map((stop) => ({ ...stop, share: 1 - stop.lag / farthest }));
  return [{ shard: null, head: null, stops }];
}

function behind(head, at) {
  if (head === undefined || head === null || at === undefined || at === null) return null;
  const lag = Number(first(head)) - Number(first(at));
  return Number.isFinite(lag) ? Math.max(0, lag) : null;
}

function first(position) {
  return Array.isArray(position) ? position[0] : position;
}
