"""Output that obeys a JSON schema, a regular expression or a grammar.

All but compile.py is pure Python and knows neither torch nor xgrammar.
"""
