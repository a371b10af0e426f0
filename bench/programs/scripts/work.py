# Work for CPython on malloc: work.py KIND ROUNDS. What a kind needs, it imports itself.
import sys


def tables(rounds):
    """Builds and drops dicts, lists and strings, as a program that reads records does."""

    def table(seed):
        rows = {}
        for i in range(20_000):
            key = f"row-{seed}-{i}"
            tags = [f"t{i % 97}", f"u{i % 89}", i * 1.5]
            rows[key] = {"id": i, "name": key.upper(), "tags": tags, "text": "x" * (i % 200)}
        return rows

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
    print(total)


def json(rounds):
    """Documents as a web service has them, written and read again."""
    import json
    import zlib

    def item(seed, i):
        parent = {"id": i // 2, "path": "/".join(map(str, range(i % 9)))}
        return {
            "name": f"item {seed}-{i}", "price": i * 1.25, "tags": [f"tag{n}" for n in range(i % 7)],
            "text": "line of text\n" * (i % 11), "parent": parent, "open": i % 3 == 0, "note": None,
        }

    check = 0
    for seed in range(rounds):
        document = {"id": seed, "items": [item(seed, i) for i in range(2_000)]}
        text = json.dumps(document, sort_keys=True, indent=seed % 2 or None)
        back = json.loads(text)
        small = [json.loads(json.dumps(item)) for item in back["items"]]
        assert small == back["items"]
        check = zlib.crc32(text.encode(), check)
    print(check)


def ast(rounds):
    """Parses and compiles modules of Python's own library."""
    import ast
    import os

    names = ["argparse", "ast", "calendar", "configparser", "dataclasses", "datetime", "difflib",
             "inspect", "locale", "pickle", "shutil", "statistics", "subprocess", "tarfile",
             "textwrap", "threading", "turtle", "typing", "uuid", "zipfile"]
    count = 0
    kept = []
    for number in range(rounds):
        name = names[number % len(names)]
        path = os.path.join(os.path.dirname(os.__file__), name + ".py")
        with open(path, encoding="utf-8") as file:
            source = file.read()
        tree = ast.parse(source)
        count += sum(1 for _ in ast.walk(tree))
        kept.append(compile(tree, name, "exec", optimize=number % 3))
        count += len(ast.unparse(tree))
        if len(kept) > 5:
            kept.pop(0)
    print(count, len(kept))


class Node:
    def __init__(self, depth, name):
        self.name = name
        self.children = [Node(depth - 1, f"{name}.{n}") for n in range(4)] if depth else []
        for child in self.children:
            child.parent = self

    def total(self):
        return len(self.name) + sum(child.total() for child in self.children)


def objects(rounds):
    """Trees of objects, comprehensions, closures, and cycles for the collector."""

    def sieve(limit):
        composite = {m for n in range(2, int(limit**0.5) + 1) for m in range(n * n, limit, n)}
        return [n for n in range(2, limit) if n not in composite]

    total = 0
    for round in range(rounds):
        total += Node(6, "root").total()
        primes = sieve(15_000)
        pairs = [(a, float(b)) for a, b in zip(primes, primes[1:])]
        steps = [lambda x, a=a: x + a for a, b in pairs]
        total += sum(step(1) for step in steps)
        groups = {}
        for a, b in pairs:
            groups.setdefault(a % 101, []).append(str(b))
        total += sum(len("".join(group)) for group in groups.values())
        big = [n**40 for n in range(3_000)]
        total += sum(big) % 1_000_003
    print(total)


{"tables": tables, "json": json, "ast": ast, "objects": objects}[sys.argv[1]](int(sys.argv[2]))
