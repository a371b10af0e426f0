# Builds and drops dicts, lists and strings; prints milliseconds and peak RSS in MiB.
import sys
import time

ROWS = 20_000


def table(seed):
    """Rows of mixed small objects, as a program that reads records makes them."""
    rows = {}
    for i in range(ROWS):
        key = f"row-{seed}-{i}"
        rows[key] = {
            "id": i,
            "name": key.upper(),
            "tags": [f"t{i % 97}", f"u{i % 89}", i * 1.5],
            "text": "x" * (i % 200),
        }
    return rows


def work(rounds):
    kept = []
    total = 0
    for seed in range(rounds):
        rows = table(seed)
        total += sum(len(row["text"]) + len(row["name"]) for row in rows.values())
        # A third survives a while, the rest goes: holes among live objects.
        kept.append({key: row for n, (key, row) in enumerate(rows.items()) if n % 3 == 0})
        if len(kept) > 4:
            kept.pop(0)
        joined = ",".join(rows)
        total += len(joined.split(",")) + len(sorted(joined.split(","), reverse=True))
    return total


rounds = int(sys.argv[1])
start = time.perf_counter_ns()
total = work(rounds)
ms = (time.perf_counter_ns() - start) / 1e6

expected = sum(
    sum(i % 200 + len(f"row-{seed}-{i}") for i in range(ROWS)) + 2 * ROWS for seed in range(rounds)
)
assert total == expected, (total, expected)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(ms, peak / 1024)
