"""The reader: a small Qwen3-VL that reads print and answers, trained from scratch on views as choosers make them."""
