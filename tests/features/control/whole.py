"""Tell tests of the whole product what the control adds."""

NAME = "control"
CODE_VERSIONS: dict[str, set[str]] = {"features.control.design.CODE_VERSION": {"control"}}
