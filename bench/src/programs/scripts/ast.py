# Parses and compiles modules of Python's own library.
import ast
import os
import sys

NAMES = ["argparse", "ast", "calendar", "configparser", "dataclasses", "datetime", "difflib",
         "inspect", "locale", "pickle", "shutil", "statistics", "subprocess", "tarfile",
         "textwrap", "threading", "turtle", "typing", "uuid", "zipfile"]

count = 0
kept = []
for number in range(int(sys.argv[1])):
    name = NAMES[number % len(NAMES)]
    with open(os.path.join(os.path.dirname(os.__file__), name + ".py"), encoding="utf-8") as file:
        source = file.read()
    tree = ast.parse(source)
    count += sum(1 for _ in ast.walk(tree))
    kept.append(compile(tree, name, "exec", optimize=number % 3))
    count += len(ast.unparse(tree))
    if len(kept) > 5:
        kept.pop(0)
print(count, len(kept))
