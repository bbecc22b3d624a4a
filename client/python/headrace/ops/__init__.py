"""The operators as methods, by family; headrace.graph.Graph unites them."""
