"""Write the golden files: `python -m tests.golden.make`, or one door or file of them with `--only ask/half-273`.

The committed ones were made by 1a62bb3. Run it again only for a wanted difference, and commit that by itself.
"""

import argparse
import time

import torch

from tests.golden import record
from tests.golden.cases import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description="write golden files")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="names, or what they begin with")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    names = [name for name in CASES if any(name == own or name.startswith(own) for own in chosen)]
    if not names:
        parser.error(f"--only must begin the name of a case, got {' '.join(chosen)}")
    for name in names:
        began = time.process_time()
        record.write(name, CASES[name]())
        print(f"{name}: {time.process_time() - began:.2f} s", flush=True)
    if len(names) == len(CASES):
        record.write(record.MADE, record.machine())


if __name__ == "__main__":
    main()
