"""Prompts and answers of the three protocols: Chat Completions, Responses and Messages.

Pure Python over strings and plain data; no torch, no network, no tokenizer of its own.
"""
