"""The command line: `python -m mscclpp --version`, and options that print where the package has its files."""

import argparse

import mscclpp


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mscclpp", description=(mscclpp.__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="store_true", help="print the version and the commit")
    parser.add_argument("--include", action="store_true", help="print the folder of the device API's headers")
    parser.add_argument("--lib", action="store_true", help="print the folder of the library")
    arguments = parser.parse_args()
    if arguments.version:
        print(f"mscclpp {mscclpp.__version__} ({mscclpp.version['git_commit']})")
    if arguments.include:
        print(mscclpp.get_include())
    if arguments.lib:
        print(mscclpp.get_lib())
    if not any(vars(arguments).values()):
        parser.print_help()


if __name__ == "__main__":
    main()
