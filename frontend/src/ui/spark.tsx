/** Sparkline: a chart without axes for the last minutes. */

const WIDTH = 120;
const HEIGHT = 28;

export function Spark({ values, label }: { values: readonly number[]; label: string }) {
  const top = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values
    .map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`)
    .join(" ");
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label} preserveAspectRatio="none">
      {values.length > 1 && <polyline points={points} />}
    </svg>
  );
}
