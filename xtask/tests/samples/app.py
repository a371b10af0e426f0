"""Says what this interpreter is, and whether it and its children run on cairn."""

import multiprocessing
import subprocess
import sys


def on_cairn():
    with open("/proc/self/maps") as maps:
        return "/libcairn-" in maps.read()


if __name__ == "__main__":
    code = "print('/libcairn-' in open('/proc/self/maps').read())"
    child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        worker = pool.apply(on_cairn)
    print(on_cairn(), child.stdout.decode().strip(), worker, sys.executable, sys.flags.isolated, *sys.argv[1:])
