"""Models over the graph builder: reading GGUF, tokenising, Llama-family graphs, sampling."""
