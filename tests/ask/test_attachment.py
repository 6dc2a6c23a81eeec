"""Attached: the user's own code goes on working, on chosen tokens; detached, everything is as it was."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import OPTIONS, QUESTION, conversation, inputs_of, picture, users_code, visual_tokens
from tests.vlm import small
from texturevlm.ask import attachment
from texturevlm.ask.processor import TextureProcessor
from texturevlm.placement import CapturedChoice, TokenConfig, prepare

OURS = "texturevlm"


@pytest.fixture(params=list(models.FAMILIES), scope="module")
def built(request):
    return models.built(request.param)


@pytest.fixture
def attached(built):
    model, processor = built
    yield model, tv.attach(model, processor, budget=9, relevance="none")
    tv.detach(model)


@pytest.fixture
def qwen():
    return models.built("qwen3_vl")


def hooks(model):
    """All that an adapter puts into a model; transformers has hooks of its own there."""
    found = {("", "adapter")} if hasattr(model, "texturevlm_adapter") else set()
    for name, module in model.named_modules():
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            found |= {(name, hook.__qualname__) for hook in getattr(module, kind).values() if OURS in hook.__module__}
        found |= {(name, key) for key, value in vars(module).items() if OURS in type(value).__module__}
    return found


def test_the_users_own_code_reads_chosen_tokens(attached):
    model, processor = attached
    image = picture(288, 288)
    inputs, answer = users_code(model, processor, image)
    assert visual_tokens(model, inputs) == [9]
    assert answer == tv.VLM(model, processor).ask(image, QUESTION, max_new_tokens=4)
    with torch.no_grad():
        assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape


def test_detached_the_model_is_as_it_was(built):
    model, processor = built
    assert not hooks(model)
    ids = torch.tensor([[7, 8, 9, 10]])
    stock = model(ids).logits
    attached = tv.attach(model, processor, budget=4, relevance="none")
    assert hooks(model)
    assert torch.equal(model(ids).logits, stock)
    inputs = users_code(model, attached, picture(224, 224))[0]
    assert attached.detach() is model
    assert not hooks(model) and torch.equal(model(ids).logits, stock)
    with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
        model(**inputs)
    attached.detach()  # once more changes nothing
    assert not hooks(model)


def test_a_processor_whose_model_was_detached_says_so(built):
    """The model would fail on its inputs, with an error about shapes."""
    model, processor = built
    image = picture(64, 64)
    one, other = (tv.attach(model, processor, budget=4, relevance="none") for _ in range(2))
    text = one.apply_chat_template(conversation(image), add_generation_prompt=True)
    one.detach()
    assert model(**one(text=text, images=image, return_tensors="pt")) is not None  # the other one holds the hooks
    copied = pickle.loads(pickle.dumps(one))
    other.detach()
    for gone in (one, other):
        with pytest.raises(ValueError, match=f"processor: its {type(model).__name__} was detached and takes no chosen"):
            gone(text=text, images=image, return_tensors="pt")
        assert gone(text="what is it ?", return_tensors="pt")["input_ids"].shape[0] == 1
    assert copied(text=text, images=image, return_tensors="pt")  # knows of no model
    again = tv.attach(model, one)
    assert again.budget == 4 and model(**again(text=text, images=image, return_tensors="pt")) is not None
    assert tv.VLM(model, other).ask(image, QUESTION, max_new_tokens=2)
    tv.detach(model)


def test_the_models_own_input_passes_an_attached_model_unchanged():
    model, processor = models.built("llava")
    stock = users_code(model, processor, picture(224, 224))
    attached = tv.attach(model, processor, budget=4, relevance="none")
    during = users_code(model, processor, picture(224, 224))
    assert during[1] == stock[1] and visual_tokens(model, during[0]) == [36]
    assert visual_tokens(model, users_code(model, attached, picture(224, 224))[0]) == [4]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_several_processors_on_one_model_are_detached_in_any_order(qwen, order):
    model, processor = qwen
    budgets, image = (4, 6, 9), picture(288, 288)
    processors = [tv.attach(model, processor, budget=budget, relevance="none") for budget in budgets]
    assert len({id(one) for one in processors}) == 3
    wanted = [users_code(model, one, image) for one in processors]
    assert [visual_tokens(model, inputs) for inputs, _ in wanted] == [[4], [6], [9]]
    left = {0, 1, 2}
    for gone in order:
        assert processors[gone].detach() is model
        left.remove(gone)
        for one in left:
            assert users_code(model, processors[one], image)[1] == wanted[one][1]
    assert not hooks(model)


def test_attaching_an_attached_processor_changes_its_options(qwen):
    model, processor = qwen
    assert not hooks(model)
    first = tv.attach(model, processor, budget=4, relevance="none")
    second = tv.attach(model, first, budget=7, relevance="none")
    assert second.processor is processor
    assert visual_tokens(model, users_code(model, second, picture(288, 288))[0]) == [7]
    first.detach()  # it was replaced, so it holds no hooks
    assert visual_tokens(model, users_code(model, second, picture(288, 288))[0]) == [7]
    second.detach()
    assert not hooks(model)


def test_hooks_of_a_vlm_that_is_gone_are_removed_by_the_processor_it_was_made_of(qwen):
    model, processor = qwen
    first = tv.attach(model, processor, budget=9, relevance="none")
    asked = tv.VLM(model, first, budget=4)  # has a processor of its own, which replaces the first
    first.detach()
    assert hooks(model), "the VLM needs them"
    del asked
    gc.collect()
    assert first.detach() is model and not hooks(model)


def test_detaching_the_model_detaches_all_its_processors(qwen):
    model, processor = qwen
    assert not hooks(model)
    for budget in (4, 6):
        tv.attach(model, processor, budget=budget)
    kept = tv.attach(model, processor, budget=9)
    assert tv.detach(model) is model and not hooks(model)
    assert kept.detach() is None


def test_a_vlm_may_stand_for_its_model(qwen):
    model, _ = qwen
    vlm = tv.VLM(*qwen, budget=9, relevance="none")
    processor = tv.attach(vlm, vlm.processor, budget=4)
    assert visual_tokens(model, users_code(model, processor, picture(224, 224))[0]) == [4]
    assert tv.detach(vlm) is model and not hooks(model)


@pytest.mark.parametrize("other", ["folder", None, 3])
def test_what_cannot_be_detached_is_named(other):
    wanted = "detach: attached must be the processor that attach returned, or the model, got "
    with pytest.raises(TypeError, match=wanted + type(other).__name__):
        tv.detach(other)


def test_a_detached_model_says_so(qwen):
    model, processor = qwen
    asked = tv.VLM(model, processor, budget=4, relevance="none")
    session = asked.prepare(picture(64, 64))
    asked.detach()
    with pytest.raises(ValueError, match="ask: model was detached"):
        session.ask(QUESTION)
    with pytest.raises(ValueError, match="ask: model was detached"):
        session.look(QUESTION, looks=2, relevance="auto")
    assert session.look(QUESTION).width > 0


def test_clear_errors_leave_nothing_behind(built):
    model, processor = built
    assert not hooks(model)
    with pytest.raises(ValueError, match=r"attach: model must be one of qwen3_vl, .*got 'siglip'"):
        tv.attach(small.siglip(), processor)
    with pytest.raises(ValueError, match=r"attach: model must be one of qwen3_vl, .*got 'Linear'"):
        tv.attach(torch.nn.Linear(1, 1), processor)
    with pytest.raises(TypeError, match=r"processor must be the model's processor.*got (TokenizersBackend|Pre)"):
        tv.attach(model, processor.tokenizer)
    with pytest.raises(ValueError, match="allocator must be one of"):
        tv.attach(model, processor, allocator="circles")
    with pytest.raises(ValueError, match=r"budget must be a number or a pair \(low, high\), got \(9, 4\)"):
        tv.attach(model, processor, budget=(9, 4))
    with pytest.raises(TypeError, match="budget must be a whole number, got 'many'"):
        tv.attach(model, processor, budget=(9, "many"))
    with pytest.raises(ValueError, match="attach: relevance must be a name or several names, got none"):
        tv.attach(model, processor, relevance=())
    with pytest.raises(TypeError, match="relevance must be a scorer or the name of one, got 5"):
        tv.attach(model, processor, relevance=5)
    with pytest.raises(TypeError, match="detach: attached must be the processor that attach returned, or "):
        tv.detach(processor)
    assert not hooks(model)


def test_an_attach_that_fails_half_way_leaves_nothing_behind(qwen, monkeypatch):
    model, processor = qwen
    assert not hooks(model)
    monkeypatch.setattr(type(model.model), "get_rope_index", None)  # as if transformers had renamed it
    with pytest.raises(RuntimeError, match="adapt: Qwen3VLModel has no get_rope_index in this version of transformers"):
        tv.attach(model, processor, budget=4)
    assert not hooks(model)
    monkeypatch.undo()
    attached = tv.attach(model, processor, budget=4, relevance="none")
    assert visual_tokens(model, users_code(model, attached, picture(288, 288))[0]) == [4]


def test_a_failed_attach_leaves_an_earlier_one_working(qwen):
    model, processor = qwen
    first = tv.attach(model, processor, budget=4, relevance="none")
    with pytest.raises(TypeError, match="processor must be the model's processor"):
        tv.attach(model, processor.tokenizer, budget=9)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        tv.attach(model, first, budget=0)
    assert visual_tokens(model, users_code(model, first, picture(288, 288))[0]) == [4]


def test_a_copied_model_works_by_itself(attached):
    model, processor = attached
    image = picture(288, 288)
    wanted = users_code(model, processor, image)[1]
    copied = copy.deepcopy(model)
    assert users_code(copied, processor, image)[1] == wanted
    assert tv.detach(copied) is copied and not hooks(copied)
    assert users_code(model, processor, image)[1] == wanted and hooks(model)


def test_a_copied_model_uses_its_own_weights(attached):
    model, processor = attached
    inputs = inputs_of(processor, conversation(picture(288, 288)))
    copied = copy.deepcopy(model)
    tower = next(one for name, one in copied.named_parameters() if "patch_embed" in name and one.dim() > 1)
    with torch.no_grad():
        wanted = copied(**inputs).logits
        tower.mul_(-1)
        assert (copied(**inputs).logits - wanted).abs().max() > 1e-3
        assert torch.equal(model(**inputs).logits, wanted)


def test_a_model_wrapped_by_peft(attached):
    peft = pytest.importorskip("peft", reason="peft is in the extra dev")
    model, processor = models.built(attached[0].config.model_type)
    image = picture(288, 288)
    assert not hooks(model)
    plain = tv.attach(model, processor, budget=9, relevance="none")
    wanted = users_code(model, plain, image)[1]
    plain.detach()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2))
    chosen = tv.attach(wrapped, processor, budget=9, relevance="none")
    assert users_code(wrapped, chosen, image)[1] == wanted  # LoRA begins at zero
    inputs = inputs_of(chosen, conversation(image))
    wrapped.train()
    wrapped(**inputs, labels=inputs["input_ids"]).loss.backward()
    # the last layer of LLaVA's tower is not used
    trained = [one for name, one in wrapped.named_parameters() if one.requires_grad and "language_model" in name]
    assert len(trained) == 12 and all(one.grad is not None for one in trained)
    wrapped.eval()
    assert tv.VLM(wrapped, chosen).ask(image, QUESTION, **OPTIONS) == wanted
    assert tv.detach(wrapped) is model
    assert not hooks(model)


def test_a_vlm_is_pickled_without_its_graphs(qwen):
    model, processor = qwen
    asked = tv.VLM(model, processor, budget=9, relevance="none", captured=True)
    image = picture(100, 140)
    wanted = asked.ask(image, QUESTION, max_new_tokens=4)
    assert asked.graphs.fixed is not None
    other = pickle.loads(pickle.dumps(asked))
    assert other.graphs.fixed is None and hooks(other.model) and other.adapter.lock is not asked.adapter.lock
    assert other.ask(image, QUESTION, max_new_tokens=4) == wanted
    other.detach()
    assert not hooks(other.model) and hooks(model)


@pytest.mark.parametrize("way", ["vlm", "processor", "model"])
def test_graphs_go_with_the_hooks(qwen, way):
    asked = tv.VLM(*qwen, budget=9, relevance="none", captured=True)
    asked.ask(picture(100, 140), QUESTION, max_new_tokens=1)
    graphs, choice = weakref.ref(asked.graphs.fixed), FakeReplay()
    asked._choice.kept["a size"] = choice
    assert graphs() is not None
    {"vlm": asked.detach, "processor": asked.processor.detach, "model": lambda: tv.detach(asked.model)}[way]()
    gc.collect()
    assert graphs() is None and choice.finished and not asked._choice.kept


def test_graphs_stay_for_the_other_processor_of_a_model(qwen):
    asked = tv.VLM(*qwen, budget=9, relevance="none", captured=True)
    asked.ask(picture(100, 140), QUESTION, max_new_tokens=1)
    tv.attach(*qwen, budget=4).detach()
    assert asked.graphs.fixed is not None
    asked.detach()


def test_graphs_go_when_the_model_left_the_gpu(qwen, monkeypatch):
    asked = tv.VLM(*qwen, budget=9, relevance="none")
    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(type(asked.graphs), "wanted", True)
        asked.ask(picture(100, 140), QUESTION, max_new_tokens=1)
    graphs = weakref.ref(asked.graphs.fixed)
    asked._choice.kept["a size"] = FakeReplay()
    asked.ask(picture(100, 140), QUESTION, max_new_tokens=1)  # on the CPU, where nothing is captured
    gc.collect()
    assert graphs() is None and not asked._choice.kept
    moved = CapturedChoice()
    moved.kept["a size"], moved._device = FakeReplay(), torch.device("cuda")
    how = TokenConfig(9, relevance="none", turn=0.0)
    assert moved.place(prepare(picture(100, 140), how), "", how) is None and not moved.kept


def test_a_processor_without_any_attached_model_says_so_once(qwen, monkeypatch):
    model, given = qwen
    monkeypatch.setattr(attachment, "HOOKED", [])  # without those of other tests
    alone = TextureProcessor(given, model.config, budget=9, relevance="none")
    with pytest.warns(UserWarning, match=r"no model .* is attached.*: processor = tv\.attach\(model, ") as said:
        inputs = inputs_of(alone, conversation(picture(64, 64)))
        inputs_of(alone, conversation(picture(64, 64)))
    assert len(said) == 1
    with pytest.raises(RuntimeError):  # of transformers, about a shape
        model(**inputs)
    monkeypatch.undo()
    tv.attach(model, alone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = TextureProcessor(given, model.config, budget=9, relevance="none")
        assert model(**inputs_of(fresh, conversation(picture(64, 64)))).logits.isfinite().all()
    tv.detach(model)


class FakeReplay:
    """Stands for a graph, which only a GPU has."""

    finished = False

    def finish(self):
        self.finished = True
