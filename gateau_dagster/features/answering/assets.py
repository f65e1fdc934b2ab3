"""Provide the judge to the steps that ask one."""

from gateau_dagster.resources.judge import JudgeResource

RESOURCES = {"judge": JudgeResource()}
