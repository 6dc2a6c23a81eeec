"""Fine-tuning end to end: the example overfits eight samples of a tiny model, and what it saves answers them."""

import contextlib
import importlib.util
import io
import json
import pickle
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.vlm import small
from texturevlm.ask.processor import TextureProcessor

pytest.importorskip("peft", reason="needs the extra finetune")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "finetuning.md").read_text()
QUESTION = "What colour is it?"
ANSWERS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL += ["<|video_pad|>"]
TEMPLATE = (  # as that of Qwen3-VL, without tools and videos
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for block in message.content %}"
    "{% if block.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ block.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BUDGETS = (4, 12)
VOCABULARY = 384
STEPS = 12
BAR = 0.1  # of the loss, in nats per token; an untrained model has about 10


def byte_level_tokenizer():
    """Byte-level BPE with the special tokens of Qwen, trained on the spot."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([f"user assistant {QUESTION}"] * 4 + ANSWERS * 4, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=SPECIAL[0], eos_token=SPECIAL[2], additional_special_tokens=SPECIAL[1:]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_model(folder):
    """A tiny Qwen3-VL with random weights, as a checkpoint lies on a disk."""
    model, processor = small.qwen3_vl()
    tokenizer, config = byte_level_tokenizer(), model.config
    for name, word in zip(("vision_start", "vision_end", "image", "video"), SPECIAL[3:]):
        setattr(config, f"{name}_token_id", tokenizer.convert_tokens_to_ids(word))
    config.text_config.vocab_size = VOCABULARY
    config.text_config.eos_token_id, config.text_config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = small.grown(type(model), config, head=0.6)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    for part in (model, tokenizer, processor.image_processor):
        part.save_pretrained(folder)


def save_samples(folder):
    """Eight noisy images of different sizes, all with the same question: only the image tells the answer."""
    noise = torch.Generator().manual_seed(0)
    lines = []
    for index, answer in enumerate(ANSWERS):
        colour = torch.tensor([index & 1, index >> 1 & 1, index >> 2])[:, None, None]
        pixels = 0.7 * colour + 0.3 * torch.rand(3, 96, 96 + 8 * index, generator=noise)
        Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy()).save(folder / f"{answer}.png")
        lines.append(json.dumps({"image": f"{answer}.png", "question": QUESTION, "answer": answer}))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def finetune():
    """The example as a module, under the name by which workers would find it."""
    spec = importlib.util.spec_from_file_location("finetune", ROOT / "examples" / "finetune.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "finetune", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("finetune")
    save_model(path / "model")
    save_samples(path)
    return path


def arguments(folder, *more, steps=STEPS):
    given = [folder / "samples.jsonl", "--model", folder / "model", "--out", folder / "out", "--steps", steps]
    given += ["--batch", 8, "--learning-rate", 0.02, "--budget", *BUDGETS, "--log-every", 1, "--check", 8, *more]
    return [str(one) for one in given]


@pytest.fixture(scope="module")
def printed(finetune, folder):
    """What the example prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        finetune.main(arguments(folder))
    return text.getvalue()


def test_eight_samples_are_learnt_and_what_was_saved_answers_at_both_budgets(printed):
    before, after = map(float, re.search(r"loss (\S+) → (\S+) in", printed).groups())
    assert before > 3 and after < BAR
    for budget in BUDGETS:
        answers = re.findall(rf"budget {budget}: .* → (.*) \(wanted: (.*)\)", printed)
        assert [wanted for _, wanted in answers] == ANSWERS
        assert [answer for answer, _ in answers] == ANSWERS


def test_the_documented_code_answers(printed, folder, capsys):
    code = re.search(r"```python\n(import texturevlm as tv\nfrom peft.*?)```", PAGE, re.DOTALL)[1]
    for shown, meant in {
        "Qwen/Qwen3-VL-2B-Instruct": folder / "model",
        "runs/adapter": folder / "out",
        "page.png": folder / "cyan.png",
        "What is the total?": QUESTION,
        "budget=273": "budget=8",
    }.items():
        assert shown in code
        code = code.replace(shown, str(meant))
    exec(compile(code, "docs/finetuning.md", "exec"), {})
    assert capsys.readouterr().out == "cyan\n"


def test_without_the_adapter_the_model_knows_nothing(printed, folder):
    model = tv.load_vlm(folder / "model", budget=BUDGETS[1], relevance="none", device="cpu")
    answers = model.ask(
        [[str(folder / f"{answer}.png")] for answer in ANSWERS], [QUESTION] * len(ANSWERS), max_new_tokens=8
    )
    assert sum(answer == wanted for answer, wanted in zip(answers, ANSWERS)) <= 1


def test_a_model_is_asked_in_the_middle_of_its_training(folder):
    """Under gradient checkpointing, transformers generates without a cache, and goes on as if it had one."""
    vlm = tv.load_vlm(folder / "model", budget=BUDGETS[0], relevance="none", device="cpu")
    wanted = vlm.ask(str(folder / "red.png"), QUESTION, max_new_tokens=8)
    vlm.model.train()
    vlm.model.model.visual.eval()  # frozen
    vlm.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert vlm.ask(str(folder / "red.png"), QUESTION, max_new_tokens=8) == wanted
    assert vlm.model.training and vlm.model.lm_head.training and not vlm.model.model.visual.training


@pytest.mark.parametrize("first", ["attach", "offload"])
def test_an_offloaded_model_answers_the_same(folder, first):
    """accelerate leaves the weights on the meta device until they are used."""
    accelerate = pytest.importorskip("accelerate", reason="needs the extra finetune")
    vlm = tv.load_vlm(folder / "model", budget=BUDGETS[1], relevance="none", device="cpu")
    wanted = vlm.ask(str(folder / "red.png"), QUESTION, max_new_tokens=8)
    if first == "offload":
        vlm.detach()
    model = accelerate.cpu_offload(vlm.model, execution_device=torch.device("cpu"))
    processor = tv.attach(model, vlm.processor, budget=BUDGETS[1], relevance="none")
    assert model.device.type == "meta"
    assert tv.VLM(model, processor).ask(str(folder / "red.png"), QUESTION, max_new_tokens=8) == wanted


def test_training_goes_on_from_a_checkpoint(printed, finetune, folder, capsys):
    finetune.main(arguments(folder, "--resume", "--check", "0", steps=STEPS + 1))
    before, after = map(float, re.search(r"loss (\S+) → (\S+) in", capsys.readouterr().out).groups())
    assert before > 3, "the history is kept"
    assert after < BAR
    state = json.loads((folder / "out" / f"checkpoint-{STEPS + 1}" / "trainer_state.json").read_text())
    assert state["global_step"] == len(state["log_history"]) == STEPS + 1


def test_only_the_answer_has_labels_and_each_sample_its_own_budget(finetune, folder):
    processor = TextureProcessor.from_pretrained(folder / "model", budget=BUDGETS, relevance=("none", "scout"))
    collator = pickle.loads(pickle.dumps(finetune.Collator(processor)))  # as a spawned worker gets it
    random.seed(0)
    batch = collator(finetune.read_samples(folder / "samples.jsonl"))
    for labels, ids, mask, answer in zip(batch["labels"], batch["input_ids"], batch["attention_mask"], ANSWERS):
        own = labels != finetune.IGNORED
        assert processor.tokenizer.decode(labels[own]) == f"{answer}<|im_end|>\n"
        assert torch.equal(labels[own], ids[own]) and bool(mask[own].all())
    tokens = (batch["input_ids"] == processor.image_token_id).sum(1)
    assert tokens.min() >= BUDGETS[0] and tokens.max() <= BUDGETS[1] and len(tokens.unique()) > 2
    assert len(batch["pixel_values"]) == 4 * int(tokens.sum())


def test_the_prompt_is_the_one_that_is_asked(finetune, folder):
    processor = TextureProcessor.from_pretrained(folder / "model", relevance="none")
    prompt, _ = finetune.Collator(processor).rendered({"question": QUESTION, "answer": "red"})
    assert prompt == processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}],
        add_generation_prompt=True,
    )
    processor.tokenizer.chat_template = TEMPLATE.replace("<|im_end|>\n", "")
    assert finetune.Collator(processor).rendered({"question": QUESTION, "answer": "red"})[1] == "red<|im_end|>"
    processor.tokenizer.chat_template = TEMPLATE.replace("assistant\n{% endif", "robot\n{% endif")
    with pytest.raises(ValueError, match="chat template must put the answer behind the prompt"):
        finetune.Collator(processor).rendered({"question": QUESTION, "answer": "red"})


def test_another_chat_template_is_taken_and_saved(folder, tmp_path):
    """TRL sets one."""
    processor = TextureProcessor.from_pretrained(folder / "model")
    processor.chat_template = other = TEMPLATE.replace("assistant", "robot")
    messages = [{"role": "user", "content": QUESTION}]
    assert processor.apply_chat_template(messages, add_generation_prompt=True).endswith("robot\n")
    processor.save_pretrained(tmp_path)
    assert TextureProcessor.from_pretrained(tmp_path).chat_template == other


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "must have at least one sample, got none"),
        ('{"image": "red.png", "question": "?"}', r"samples.jsonl:1 must have .*, lacks \['answer'\]"),
        ('{"image": "x.png", "question": "?", "answer": "!"}', "samples.jsonl:1 names an image that is not there"),
        ("red", "samples.jsonl:1 must be JSON"),
    ],
)
def test_wrong_samples_are_named_before_a_model_is_loaded(finetune, tmp_path, line, words):
    (tmp_path / "samples.jsonl").write_text(line)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        finetune.main([str(tmp_path / "samples.jsonl"), "--model", "nowhere", "--out", str(tmp_path / "out")])
