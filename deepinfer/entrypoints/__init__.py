"""Importing any way in sets the thread policy first: OpenMP reads it when torch is imported."""

from deepinfer.config.env import set_thread_policy

set_thread_policy()
