"""python -m cairn run: this interpreter, with a program, on cairn."""

import os
import sys

import cairn

USAGE = "python -m cairn run [--OPTION]... [FILE | -m MODULE | -c CODE | -] [ARGS]..."
HELP = """\
usage: {}

Has this interpreter run a program on cairn. The options that begin with two dashes are those of `cairn run`
(`cairn run --help`). What follows them is the command line of the interpreter. The options that it has been
started with itself, as in `python -X dev -m cairn run app.py`, count for the program, too.
""".format(USAGE)

# As `env` and `cairn` do for failures of their own.
OWN_FAILURE = 125

# Options of `cairn run` whose value is the next word.
WITH_VALUE = ["--stats-file", "--report", "--memory", "--profile", "--profile-rate"]


def split(words):
    """Options of `cairn run`, and the command line of the interpreter."""
    at = 0
    while at < len(words) and words[at].startswith("--"):
        if words[at] == "--":
            return words[:at], words[at + 1 :]
        at += 2 if words[at] in WITH_VALUE else 1
    return words[:at], words[at:]


def interpreter_options():
    """What stood between the interpreter and `-m cairn`, which may be one word with other letters."""
    # Python 3.10 began to tell. Before it, this is empty.
    original = getattr(sys, "orig_argv", sys.argv)
    words = original[1 : len(original) - len(sys.argv) + 1]
    last = words.pop() if words else ""
    if last == "cairn" and words:
        last = words.pop() + last
    if not last.endswith("mcairn"):
        return []
    last = last[: -len("mcairn")]
    return words if last == "-" else words + [last]


def refuse(what):
    print("python -m cairn: {}".format(what), file=sys.stderr)
    sys.exit(OWN_FAILURE)


def main():
    words = sys.argv[1:]
    if words in (["--help"], ["-h"]):
        print(HELP, end="")
        return
    if not words:
        refuse("what to run is missing: {}".format(USAGE))
    if words[0] != "run":
        refuse("there is no {!r} here, only: {}".format(words[0], USAGE))
    options, program = split(words[1:])
    if not program and "--help" not in options:
        refuse("what to run is missing: {}".format(USAGE))
    if not sys.executable:
        refuse("this interpreter does not know where it is")
    try:
        command = cairn.command()
        os.execv(command, [command, "run"] + options + ["--", sys.executable] + interpreter_options() + program)
    except OSError as error:
        refuse(error)


if __name__ == "__main__":
    main()
