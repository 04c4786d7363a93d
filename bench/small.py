"""Small requests: the remaining cost if the model's own cost is negligible."""

from bench import throughput
from bench.common import Plan, Report, at_least, at_most, clients_of

MOST = 64
"""Number of clients at which the gateway performs best."""
RATE_AIM, P50_AIM_MS = 2500, 1.2


def run(plan: Plan) -> Report:
    report = throughput.of("small")(plan)
    report.name = "small"
    series = {entry.label: entry for entry in report.series}
    most = plan.sized(MOST, 4)
    label = f"ours, {clients_of(most)}"
    spent = {
        "the gateway": series[f"{label}, CPU a request: gateway"].values,
        "gateway and replica": series[f"{label}, CPU a request"].values,
    }
    for part, values in spent.items():
        for milliseconds in values:
            report.add(
                f"{label}, a core of {part}",
                "req/s a core",
                1e3 / milliseconds,
                aim=f"≥ {RATE_AIM}",
                meets=at_least(RATE_AIM),
            )
    alone = series["ours, 1 client, p50"]
    alone.aim, alone.meets = f"≤ {P50_AIM_MS:g} ms", at_most(P50_AIM_MS)
    return report
