"""Samples of real text: the documentation of Python's standard library, and questions on the functions in it."""

import argparse
import ast
import inspect
import json
import logging
import random
import shutil
import statistics
import string
import subprocess
import tempfile
import textwrap
import threading
import typing
import unittest.mock
import urllib.parse
import zipfile
from types import ModuleType

_MODULES: tuple[ModuleType, ...] = (
    *(argparse, ast, json, inspect, logging, random, shutil, statistics, string, subprocess, tempfile, textwrap),
    *(threading, typing, unittest.mock, urllib.parse, zipfile),
)


def record(number: int) -> dict[str, str]:
    """A document of several passages, a question on one of them, its first sentence as the answer."""
    module = _MODULES[number % len(_MODULES)]
    passages = _passages(module)
    name, text = passages[(3 * number) % len(passages)]
    return {
        "id": f"{module.__name__}-{number}",
        "source": "far" if number % 2 else "near",
        "context": "\n\n".join(f"{module.__name__}.{each}\n{said}" for each, said in passages),
        "instruction": f"What does {module.__name__}.{name} do?",
        "response": text.split(". ")[0].splitlines()[0].strip(),
    }


def _passages(module: ModuleType) -> list[tuple[str, str]]:
    """Names of a module and what is said of them."""
    found = [(name, inspect.getdoc(value)) for name, value in vars(module).items() if callable(value)]
    return [(name, text) for name, text in sorted(found) if text and not name.startswith("_")][:12]
