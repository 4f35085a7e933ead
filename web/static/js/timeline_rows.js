// The rows of the timeline from top to bottom: events, steps, the driver, then the ranks by pool and group.

const LETTER_PX = 6.3;
const MOST_ROW_PX = 30;

/** Rows as {kind, text, lane?, heatRow?}; `group` narrows the ranks to one group. */
export function rowsOf(lanes, group) {
  const rows = [
    { kind: "events", text: "events" },
    { kind: "steps", text: "steps" },
    { kind: "driver", text: "driver", heatRow: 0 },
  ];
  let current = null;
  lanes.forEach((lane, i) => {
    if (group && lane.group !== group) return;
    const name = JSON.stringify([lane.pool, lane.group]);
    if (name !== current) rows.push({ kind: "group", text: `${lane.pool} › ${lane.group}` });
    current = name;
    rows.push({ kind: "rank", text: `${lane.group} · rank ${lane.rank}`, lane, heatRow: i + 1 });
  });
  return rows;
}

export const groupsOf = (lanes) => [...new Set(lanes.map((lane) => lane.group))];

/** How high a row is and how wide the labels beside it are, in px; `height` is what there is for all rows. */
export function sizesOf(rows, width, height) {
  const rowPx = Math.round(Math.min(Math.max(height / rows.length, rows.length > 96 ? 9 : rows.length > 48 ? 13 : 20), MOST_ROW_PX));
  const longest = Math.max(...rows.map((row) => shortText(row, width).length));
  const labelPx = Math.min(Math.max(longest * LETTER_PX + 18, 76), width < 560 ? 104 : 240);
  return { rowPx, labelPx: Math.round(labelPx) };
}

/** On a narrow screen the group's own line says the group; a rank's line then says only its rank. */
export function shortText(row, width) {
  const text = width < 560 && row.kind === "rank" ? `rank ${row.lane.rank}` : row.text;
  const most = width < 560 ? 13 : 36;
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
