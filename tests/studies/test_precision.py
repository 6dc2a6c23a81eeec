"""Half precision moves a sample by less than a step of grey."""

from PIL import Image

from texturevlm_lab.studies.precision import compare_precision, main


def test_half_is_less_than_a_step_away(tmp_path):
    picture = Image.effect_noise((200, 160), 90).convert("RGB")
    picture.save(tmp_path / "noise.png")
    difference, changed = compare_precision(tmp_path / "noise.png", budget=12, patch=16)
    assert 0 < difference < 0.5 and 0 <= changed < 0.2


def test_the_command_writes_a_table(tmp_path):
    from tests.evaluate.folders import write_folder

    folder = write_folder(tmp_path / "data")
    assert main([str(folder), "--out", str(tmp_path / "out"), "--limit", "2"]) == 0
    assert "samples that round to another step" in (tmp_path / "out" / "precision.md").read_text()
