"""texturevlm train: train what a config describes."""

import argparse
from pathlib import Path

from texturevlm.commands import arguments


def add_train(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "train", _train, "train what a config describes")
    config = "a TOML file (examples/train)"
    parser.add_argument("config", type=arguments.existing_file, metavar="CONFIG", help=config)
    parser.add_option("--out", "DIR", "for checkpoints and logs (default: runs/CONFIG's name)", type=Path)
    parser.add_argument("--resume", action="store_true", help="continue exactly from the last checkpoint in DIR")


def _train(options: argparse.Namespace) -> int:
    from texturevlm_lab.evaluate.markdown import markdown_page
    from texturevlm_lab.train.config import read_config, task_of, to_json
    from texturevlm_lab.train.fit import fit
    from texturevlm_lab.train.gains import Reports
    from texturevlm_lab.train.run_files import check_out, checkpoints

    try:
        config = read_config(options.config)
    except UnicodeDecodeError:
        raise ValueError(f"CONFIG must be a TOML file, got {options.config}") from None
    out = options.out or Path("runs") / options.config.stem
    check_out(out, resume=options.resume)
    task, settings = task_of(config)
    found = fit(task, config.fit, out, resume=options.resume, settings=to_json(settings))
    done = int(checkpoints(out)[-1].name.removeprefix("step-"))  # a run may end by `seconds`
    for name, value in found.items():
        print(f"{name}: {value:.4f}")
    if isinstance(task, Reports):
        title = f"# {options.config.stem}: whether training helped"
        page = markdown_page(title, _made_by(options, done), task.report())
        (out / "report.md").write_text(page, encoding="utf-8")
        print(page)
    print(f"{out}: {done} steps of {config.task}")
    return 0


def _made_by(options: argparse.Namespace, done: int) -> str:
    """The line of a report that says where it comes from."""
    import torch

    from texturevlm_lab.evaluate.provenance import origin

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    code = origin("texturevlm_lab.commands.train")
    return f"Command: `texturevlm train {options.config}`; {code}; {done} steps on {device}; torch {torch.__version__}."
