"""`rlhf-algos options`: what may stand in the sections of a configuration file."""

from __future__ import annotations

import argparse
import sys


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "options",
        help="what may stand in a configuration file",
        description="Print the options of a configuration file by section: what each must be, its default and its "
        "meaning. Exit status 2 for an unknown section.",
    )
    parser.add_argument("section", metavar="SECTION", nargs="?", help="this one only, for example training")
    parser.add_argument("--algorithm", metavar="NAME", default="grpo", help="whose options (grpo)")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the options; exit status 2 for an unknown algorithm or section."""
    from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
    from rlhf_algos.commands.config.sections import SECTIONS, declared_in

    for given, known in ((arguments.algorithm, tuple(ALGORITHMS)), (arguments.section, (None, *SECTIONS))):
        if given not in known:
            names = ", ".join(name for name in known if name)
            print(f"rlhf-algos options: there is no {given!r}; there are {names}.", file=sys.stderr)
            return 2
    config = algorithm_class(arguments.algorithm).get_default_config()
    for section in SECTIONS if arguments.section is None else (arguments.section,):
        print(f"{section}:")
        for key, option in declared_in(config, section).items():
            print(f"  {key}: {option.meaning}\n      {option.kind.words}; {option.default!r} unless given")
    return 0
