"""The oracle of 0.3: 0.2's wheel against this tree, and planted mutants. Not a part of `make test`.

It judges the redesign alone and goes when 0.3 is released. It calls both trees by public names only; where a name
differs between them, `shim.py` takes the one that exists. A commit that changes this folder changes nothing else.
"""
