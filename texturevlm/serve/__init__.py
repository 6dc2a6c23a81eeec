"""The web door: one process serves a page to look at and an API to call.

`app.py` assembles it, `guard.py` and `limits.py` keep it safe, `lanes.py` queues work, `pictures.py` keeps what was
made of recent images. The page is plain ES modules in `static/`. docs/serve.md describes the calls.
"""
