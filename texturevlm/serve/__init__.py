"""The web door: one process serves a page to look at and an API to call.

`app.py` assembles it; `page.py`, `asking.py` and `chat.py` hold its calls. `plans.py` says what a client may choose and
places tokens by the config of the served model. `pictures.py` keeps what was made of recent images, `answers.py` asks
the model, `lanes.py` queues work, `guard.py`, `connections.py` and `limits.py` keep it safe. The page is plain ES
modules in `static/`. docs/serve.md describes the calls.
"""
