"""Put trained weights into the package.

python -m texturevlm.train.ship --spotter WEIGHTS --ranker WEIGHTS --out texturevlm/scout/scout.npz
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from texturevlm.evaluate.study import MISTAKES, command_parser, complain
from texturevlm.scout.spotter import Spotter
from texturevlm.scout.weights import load_module, load_ranker, save_modules


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("texturevlm.train.ship", __doc__)
    parser.add_argument("--spotter", type=Path, required=True, metavar="WEIGHTS", help="weights.safetensors of a run")
    parser.add_argument("--ranker", type=Path, required=True, metavar="WEIGHTS", help="weights.safetensors of a run")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    options = parser.parse_args(arguments)
    try:
        if options.out.suffix != ".npz":
            raise ValueError(f"--out must end in .npz, got {options.out}")
        spotter = load_module(Spotter(), options.spotter)
        save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker))
    except MISTAKES as error:
        return complain(parser, error)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
