# Trees of objects, comprehensions, closures, and cycles for the collector.
import sys


class Node:
    def __init__(self, depth, name):
        self.name = name
        self.children = [Node(depth - 1, f"{name}.{n}") for n in range(4)] if depth else []
        for child in self.children:
            child.parent = self

    def total(self):
        return len(self.name) + sum(child.total() for child in self.children)


def sieve(limit):
    composite = {m for n in range(2, int(limit**0.5) + 1) for m in range(n * n, limit, n)}
    return [n for n in range(2, limit) if n not in composite]


total = 0
for round in range(int(sys.argv[1])):
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
