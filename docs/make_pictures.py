"""Pictures of a run's report, by headless Chromium.

    agentcore report runs/quickstart --estimator certainty-equivalence
    python docs/make_pictures.py runs/quickstart

writes docs/images/credit.png (needs ``chromium`` on the PATH).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


def heat_map_only(page: str) -> str:
    """The report without anything but its head and the sections that hold a credit heat map."""
    head, body = page.split("<body>", 1)
    sections = re.findall(r"<section>.*?</section>", body, re.DOTALL)
    kept = [s for s in sections if 'class="heat"' in s]
    return f"{head}<body>{''.join(kept[:2])}</body></html>"


def screenshot(html: str, target: Path, width: int, height: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is needed for pictures; install it and try again.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        window = f"--window-size={width},{height}"
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={folder}/profile",
            window,
            f"--screenshot={target}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with a report.html")
    parser.add_argument("--height", type=int, default=1330)
    options = parser.parse_args()
    images = Path(__file__).parent / "images"
    images.mkdir(exist_ok=True)
    page = (options.run / "report.html").read_text(encoding="utf-8")
    screenshot(heat_map_only(page), images / "credit.png", 1180, options.height)
    print(images / "credit.png")


if __name__ == "__main__":
    main()
