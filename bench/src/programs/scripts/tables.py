# Builds and drops dicts, lists and strings, as a program that reads records does.
import sys

ROWS = 20_000


def table(seed):
    """Rows of mixed small objects."""
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


print(work(int(sys.argv[1])))
