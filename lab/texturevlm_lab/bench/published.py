"""What papers and toolkits say of reductions, as the project's survey has it (docs/rivals.md): not measured here.

L: LLaVA-1.5 at 64 of 576 tokens, per cent of the full model's score on average. n, p: Qwen2.5-VL-7B at 10% of its
tokens on ChartQA / TextVQA / DocVQA, by AngelSlim's protocol (full 83.7 / 82.7 / 94.9) and by that of the paper of PACE
(full 78.2 / 82.4 / 94.7).
"""

PUBLISHED = {
    "tome": "L 70.1",
    "fastv": "L 76.7; n 39.5 / 72.6 / 51.9; p 51.8 / 74.2 / 59.6",
    "pyramiddrop": "L 86.6",
    "sparsevlm": "L 87.2; p 61.0 / 76.3 / 49.6",
    "hired": "L 87.9",
    "visionzip": "L 92.7; n 41.6 / 61.1 / 37.9",
    "divprune": "L 94.8; n 41.4 / 62.7 / 66.2",
    "holov": "L 95.8",
    "mmtok": "L 96.6; p 51.0 / 67.3 / 51.4",
    "vscan": "L 96.7",
    "vispruner": "n 42.7 / 59.7 / 50.9",
    "cdpruner": "84 to 85% kept on average at 10% (Qwen2.5-VL-7B, Qwen3-VL-8B)",
    "pace": "p 73.5 / 78.4 / 69.6, 3.1 × to the first token",
    "pixelprune": "DocVQA 92.0 of 92.7 at 70% (Qwen3-VL-2B)",
    "pvc": "trained, 64 tokens per tile: DocVQA 92.5 (base 91.6)",
    "dtoma": "70% fewer tokens",
}
RESIZED = "Qwen2.5-VL-7B at 25% of the tokens: ChartQA 65.0, DocVQA 91.0"
LEGEND = (
    "Published figures are the project's survey's (docs/rivals.md), under protocols that differ. L: LLaVA-1.5 at 64 of "
    "576 tokens, % of the full score. n, p: Qwen2.5-VL-7B at 10% on ChartQA / TextVQA / DocVQA, by AngelSlim and by "
    "PACE."
)
