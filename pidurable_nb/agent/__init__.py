"""Conversations, inbox, registry, prompt, generation, tools, usage: the harness."""
