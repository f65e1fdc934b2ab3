"""Read what benchmarks and judges will ask, without running anything."""
