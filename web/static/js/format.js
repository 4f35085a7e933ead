// Numbers as text, for the charts and their tables; web/units.py does the same for what the server draws.

const thousands = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const two = (n) => String(n).padStart(2, "0");

/** A duration in ms with the unit that keeps about three digits. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 0) return (ms <= -0.005 ? "−" : "") + duration(-ms);
  if (ms === 0) return "0 ms";
  if (ms < 9.995) return `${ms.toFixed(2)} ms`;
  if (ms < 99.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (ms < 9995) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / 86400)} d ${two(Math.floor((s % 86400) / 3600))} h`;
}

/** A point of time in ms since the run's start; `digits` of its second's fraction are shown. */
export function sinceStart(ms, digits = 3) {
  if (ms === null || ms === undefined) return "–";
  const scale = 10 ** digits;
  const units = Math.max(Math.round((ms / 1000) * scale), 0);
  const s = Math.floor(units / scale);
  const rest = digits ? "." + String(units % scale).padStart(digits, "0") : "";
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}${rest}`;
  return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}${rest}`;
}

export const count = (n) => thousands.format(n);

export function percent(share) {
  if (!(share > 0)) return "0 %";
  if (share < 0.001) return "<0.1 %";
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

/** A step's metric with four significant digits; what JSON could not carry comes as null. */
export const metric = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "nan");
