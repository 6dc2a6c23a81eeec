"""Studies: each module makes one table of results/ and is run by name, `python -m texturevlm_lab.studies.NAME DATA
--out results`.

Studies import the package; nothing in the package imports a study. They are tested (tests/studies) and not installed.
"""
