"""A report every working day at six in the morning, in Rome: daylight saving time included, each exactly once.

pointsman worker cron_report:worker         with POINTSMAN_URL and POINTSMAN_API_KEY
pointsman schedule show daily-report        the next five times, and the last
pointsman schedule run-now daily-report     one more, now
"""

from datetime import date, timedelta

from endpoint_sdk import Cron, Retry, Run, Worker, task, workflow


@task
def collect(day: date) -> int:
    """How many orders there were."""
    return day.toordinal() % 1_000


@task(retry=Retry.exponential(max_attempts=5))
def send(day: date, orders: int) -> str:
    return f"{day:%d.%m.%Y}: {orders} orders"


# Down for a week it makes up for the last morning only, and it never overtakes a report that is still under way.
@workflow(
    "daily-report",
    version="1.0.0",
    schedule=Cron("0 6 * * 1-5", timezone="Europe/Rome", overlap="skip", catch_up=1),
    timeout=timedelta(hours=2),
)
async def daily_report(run: Run) -> str:
    # The time it stands for, not the time it runs: a late or repeated run reports on the same day.
    when = run.info.scheduled_for or run.info.submitted_at
    day = when.date() - timedelta(days=1)
    return await run.task(send, day, await run.task(collect, day))


worker = Worker([daily_report])
