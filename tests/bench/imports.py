"""What ``import durakit`` costs beside ``import pydantic``: medians of fresh interpreters."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def main() -> None:
    """Read the command line and measure, the three in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"pass": [], "import pydantic": [], "import durakit": []}
    for _ in range(arguments.repeat):
        for code, found in times.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            found.append(time.perf_counter() - began)
    empty, pydantic, durakit = (statistics.median(found) for found in times.values())
    print(
        json.dumps(
            {
                "pydantic_seconds": round(pydantic - empty, 4),
                "durakit_seconds": round(durakit - empty, 4),
                "ratio": round((durakit - empty) / (pydantic - empty), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
