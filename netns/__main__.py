"""`mrc-lab`, and `python -m netns`: says what to install where the lab's packages are missing."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from netns.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        print(
            f"mrc-lab: the Python package {error.name} is missing; install the lab's with: "
            "pip install 'mrc-transport[lab]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
