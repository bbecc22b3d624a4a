"""The command line: headrace generate | devices | explain | trace | history | stats | inspect |
quantize | token.

Results go to stdout, everything else to stderr. Exit codes: 0 done; 1 the daemon refused or failed;
2 wrong usage; 3 no daemon, or the connection was lost; 4 a file cannot be used; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headrace.cli.arguments import parser
from headrace.cli.common import BAD_FILE, FAILED, INTERRUPTED, NO_DAEMON, USAGE, FileError
from headrace.errors import HeadraceError, PeerError, Unavailable

__all__ = ["BAD_FILE", "FAILED", "INTERRUPTED", "NO_DAEMON", "USAGE", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (PeerError, Unavailable) as error:
        return failed(error, NO_DAEMON)
    except HeadraceError as error:
        return failed(error, FAILED)
    except FileError as error:
        return failed(error, BAD_FILE)
    except ValueError as error:
        return failed(error, USAGE)
    except ModuleNotFoundError as error:
        return failed(f"{error}: install headrace[models]", USAGE)


def failed(words: object, code: int) -> int:
    """Says why and returns the code."""
    print(f"headrace: {words}", file=sys.stderr)
    return code
