"""Runs the blocks of a page, one after the other, in one process: its Python blocks share their names."""

import json
import subprocess
import sys

if __name__ == "__main__":
    for language, text in json.load(sys.stdin):
        sys.stdout.write(f"--- {language}\n{text}\n--- says:\n")
        sys.stdout.flush()
        if language == "python":
            exec(compile(text, "<block>", "exec"))
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", text], stdin=subprocess.DEVNULL, check=True)
