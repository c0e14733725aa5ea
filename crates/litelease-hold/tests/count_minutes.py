"""The ticks of cron lines around every change of a zone, counted minute by minute with Python's zoneinfo.

Prints for each zone, change and line: zone, the window in Unix minutes, the line, and the ticks in Unix minutes.
"""

import sys
from datetime import datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

HALF = 7 * 60  # minutes on either side of a change


def field(text, low, high):
    found = set()
    for part in text.split(","):
        part, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if part == "*" else part).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def times(line, days_shown):
    """The minutes of these days that a line names, on any clock."""
    minutes, hours, days, months, weekdays = line.split()
    month, day, weekday = field(months, 1, 12), field(days, 1, 31), {d % 7 for d in field(weekdays, 0, 7)}
    found = set()
    for shown in days_shown:
        by_day, by_weekday = shown.day in day, shown.isoweekday() % 7 in weekday
        both = days[0] == "*" or weekdays[0] == "*"
        if shown.month in month and (by_day and by_weekday if both else by_day or by_weekday):
            for hour in field(hours, 0, 23):
                found |= {datetime.combine(shown, time(hour, minute)) for minute in field(minutes, 0, 59)}
    return found


def changes(zone, first, last):
    """The minutes at which the offset changes."""
    def offset(minute):
        return datetime.fromtimestamp(minute * 60, zone).utcoffset()

    step = 12 * 60
    for start in range(first, last, step):
        low, high = start, start + step
        if offset(low) != offset(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            yield high


def ticks(line, real, civil):
    """`real` are the minutes of a window, `civil` what the clock on the wall shows at each."""
    days = [civil[0].date() + timedelta(days=n) for n in range((civil[-1].date() - civil[0].date()).days + 1)]
    named = times(line, days)
    if any(part.startswith("*") for part in line.split()[:2]):
        return [t for t, c in zip(real, civil) if c in named]
    first = {}
    for t, c in zip(real, civil):
        first.setdefault(c, t)
    found = set()
    for c in named:
        if civil[0] <= c <= civil[-1]:
            # One that does not exist runs at the first instant that shows a later time.
            found.add(first[c] if c in first else next(t for t, later in zip(real, civil) if later > c))
    return sorted(found)


def main():
    first, last = (int(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp()) // 60 for year in map(int, sys.argv[1:3]))
    lines = [line.strip() for line in sys.stdin if line.strip()]
    for name in sys.argv[3:]:
        zone = ZoneInfo(name)
        for change in changes(zone, first, last):
            real = list(range(change - HALF, change + HALF))
            civil = [datetime.fromtimestamp(t * 60, zone).replace(tzinfo=None, fold=0) for t in real]
            for line in lines:
                print(name, real[0], real[-1], line, *ticks(line, real, civil), sep="|")


main()
