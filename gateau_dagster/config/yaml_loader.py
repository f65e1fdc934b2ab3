"""The YAML of a configuration: numbers as people write them, and the place of a value that there is not."""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError


class YamlLoader(yaml.SafeLoader):
    """YAML 1.1, but for numbers such as 2e-5, which are numbers as in YAML 1.2 and not text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The node's value. Of one that its kind does not have (`!!int ''`, 2024-02-30) PyYAML raises what it meets."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"the value is no valid {kind}", node.start_mark) from error


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
