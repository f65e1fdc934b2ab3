"""Tell tests of the whole product what the report adds."""

NAME = "report"
CODE_VERSIONS = {
    "features.report.feature.REPORT_CODE_VERSION": {"report"},
    "features.report.feature.EXPLORER_CODE_VERSION": {"report"},
}
