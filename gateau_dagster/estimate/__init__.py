"""Return the questions of benchmarks and the requests to a judge, without running anything."""
