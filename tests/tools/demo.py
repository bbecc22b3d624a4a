"""The last step of ./demo: a daemon for this one run, and `headrace generate` as its client.

demo.py MODEL.gguf OPTION...        the options are those of `headrace generate`
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from run_daemon import Daemon, DaemonError


def main() -> int:
    model = Path(sys.argv[1]).resolve()
    for number in (signal.SIGTERM, signal.SIGHUP):  # whatever ends this script, the daemon is stopped
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        with Daemon(models=[model.parent]) as daemon:
            print(f"headraced listens on {daemon.socket_path}", file=sys.stderr)
            command = [sys.executable, "-m", "headrace.cli", "--connect", daemon.address]
            command += ["generate", model.name, *sys.argv[2:]]
            status = subprocess.run(command, check=False).returncode
        print("headraced stopped cleanly", file=sys.stderr)
    except DaemonError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
