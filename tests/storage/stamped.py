"""A small table and the stamp that it is stored with."""

import polars as pl

from gateau_dagster.storage import Stamp

FRAME = pl.DataFrame({"sample_id": ["a", "b"], "values": [[1.0], []], "cas": [0.5, None]})
STAMP = Stamp(fingerprint="f1", inputs={"settings": {"x": [1, None]}, "upstream": {"raw": "d"}}, scorer="s1")
