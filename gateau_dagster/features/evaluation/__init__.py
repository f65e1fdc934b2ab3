"""Benchmarks, answers, judgments and experiments: declared, made and checked."""
