"""`bench.proto` and what each library's code generator makes of it (`python -m benchmarks generate`).

Only generated code lives here: nothing in this folder but this paragraph is written by hand.
"""
